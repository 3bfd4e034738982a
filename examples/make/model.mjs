// model.mjs - the architecture of the sample model, random weights to begin with, and rounding of the
// trained ones: node model.mjs init FOLDER [SEED] writes config.json and model.safetensors (F32); node
// model.mjs round FROM TO copies a trained model with its weights rounded to bf16.
//
// The shape is Llama's, small enough to train in minutes on two cores: about 0.93 million parameters, tied
// embeddings. Weights are normal with deviation 0.02, those that write into the residual stream smaller by
// sqrt(2 layers).
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { randomSource } from './words.mjs';

const CONFIG = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    vocab_size: 1024,
    hidden_size: 128,
    intermediate_size: 384,
    num_hidden_layers: 4,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    hidden_act: 'silu',
    max_position_embeddings: 512,
    rms_norm_eps: 1e-5,
    rope_theta: 10000.0,
    attention_bias: false,
    mlp_bias: false,
    attention_dropout: 0.0,
    tie_word_embeddings: true,
    initializer_range: 0.02,
    bos_token_id: null,
    eos_token_id: 2,
    pad_token_id: 0,
    torch_dtype: 'float32',
};
const GENERATION_CONFIG = { eos_token_id: [2, 0], pad_token_id: 0, max_new_tokens: 64 };

function tensorShapes(c) {
    const shapes = [['model.embed_tokens.weight', [c.vocab_size, c.hidden_size]]];
    const query = c.num_attention_heads * c.head_dim;
    const key = c.num_key_value_heads * c.head_dim;
    for (let layer = 0; layer < c.num_hidden_layers; layer++) {
        const add = (name, shape) => shapes.push([`model.layers.${layer}.${name}.weight`, shape]);
        add('input_layernorm', [c.hidden_size]);
        add('self_attn.q_proj', [query, c.hidden_size]);
        add('self_attn.k_proj', [key, c.hidden_size]);
        add('self_attn.v_proj', [key, c.hidden_size]);
        add('self_attn.o_proj', [c.hidden_size, query]);
        add('post_attention_layernorm', [c.hidden_size]);
        add('mlp.gate_proj', [c.intermediate_size, c.hidden_size]);
        add('mlp.up_proj', [c.intermediate_size, c.hidden_size]);
        add('mlp.down_proj', [c.hidden_size, c.intermediate_size]);
    }
    shapes.push(['model.norm.weight', [c.hidden_size]]);
    return shapes;
}

// Two uniform numbers make one normal one (Box and Muller).
function normal(r) {
    return Math.sqrt(-2 * Math.log(1 - r.next())) * Math.cos(2 * Math.PI * r.next());
}

function randomTensor(r, name, shape, layers) {
    const values = new Float32Array(shape.reduce((a, b) => a * b, 1));
    if (name.includes('norm')) return values.fill(1);
    const deviation = /o_proj|down_proj/.test(name) ? 0.02 / Math.sqrt(2 * layers) : 0.02;
    return values.map(() => deviation * normal(r));
}

// tensors: [{ name, dtype, shape, bytes }]
function writeSafetensors(path, tensors) {
    const header = { __metadata__: { format: 'pt' } };
    let offset = 0;
    for (const t of tensors) {
        header[t.name] = { dtype: t.dtype, shape: t.shape, data_offsets: [offset, offset + t.bytes.length] };
        offset += t.bytes.length;
    }
    const text = JSON.stringify(header);
    const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8, ' '));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(head.length));
    writeFileSync(path, Buffer.concat([length, head, ...tensors.map((t) => t.bytes)]));
}

function readSafetensors(path) {
    const file = readFileSync(path);
    const start = 8 + Number(file.readBigUInt64LE(0));
    const header = JSON.parse(file.subarray(8, start).toString());
    delete header.__metadata__;
    return Object.entries(header).map(([name, t]) => ({
        name,
        dtype: t.dtype,
        shape: t.shape,
        bytes: file.subarray(start + t.data_offsets[0], start + t.data_offsets[1]),
    }));
}

// Round to nearest, ties to even: the upper half of a float32.
function roundToBf16(t) {
    if (t.dtype === 'BF16') return t;
    if (t.dtype !== 'F32') throw new Error(`${t.name} is stored as ${t.dtype}, F32 or BF16 is needed`);
    const out = Buffer.alloc(t.bytes.length / 2);
    for (let i = 0; i < out.length / 2; i++) {
        const bits = t.bytes.readUInt32LE(4 * i);
        out.writeUInt16LE(((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff, 2 * i);
    }
    return { ...t, dtype: 'BF16', bytes: out };
}

const writeJson = (folder, name, value) =>
    writeFileSync(join(folder, name), `${JSON.stringify(value, null, 2)}\n`);

function init(folder, seed) {
    const r = randomSource(seed);
    mkdirSync(folder, { recursive: true });
    const tensors = tensorShapes(CONFIG).map(([name, shape]) => {
        const values = randomTensor(r, name, shape, CONFIG.num_hidden_layers);
        return { name, dtype: 'F32', shape, bytes: Buffer.from(values.buffer) };
    });
    writeSafetensors(join(folder, 'model.safetensors'), tensors);
    writeJson(folder, 'config.json', CONFIG);
    writeJson(folder, 'generation_config.json', GENERATION_CONFIG);
    console.log(`model: ${tensors.reduce((sum, t) => sum + t.bytes.length / 4, 0)} parameters`);
}

function round(from, to) {
    mkdirSync(to, { recursive: true });
    writeSafetensors(
        join(to, 'model.safetensors'),
        readSafetensors(join(from, 'model.safetensors')).map(roundToBf16),
    );
    writeJson(to, 'config.json', { ...CONFIG, torch_dtype: 'bfloat16' });
    writeJson(to, 'generation_config.json', GENERATION_CONFIG);
    for (const name of ['tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json']) {
        copyFileSync(join(from, name), join(to, name));
    }
}

const [command, ...args] = process.argv.slice(2);
if (command === 'init') init(args[0], Number(args[1] ?? 1876));
else if (command === 'round') round(args[0], args[1]);
else throw new Error('usage: model.mjs init FOLDER [SEED] | round FROM TO');
