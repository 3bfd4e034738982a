// random_model.mjs - a model folder with random bf16 weights in the shape of a published model, for
// measuring speed: node tests/bench/random_model.mjs FOLDER. Shape: SmolLM2-135M (30 layers, 576 wide,
// 49,152 words, tied embeddings).
//
// Speed does not depend on what the weights are, only that they are ordinary numbers; so they come from a
// table of normal values, walked in a fixed pseudo-random way. The tokenizer is the sample model's: its ids
// are a part of the vocabulary.
import { closeSync, copyFileSync, mkdirSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SAMPLE = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'examples', 'models', 'harbour-1m');
const CONFIG = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    vocab_size: 49152,
    hidden_size: 576,
    intermediate_size: 1536,
    num_hidden_layers: 30,
    num_attention_heads: 9,
    num_key_value_heads: 3,
    hidden_act: 'silu',
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-5,
    rope_theta: 100000,
    attention_bias: false,
    mlp_bias: false,
    tie_word_embeddings: true,
    eos_token_id: 2,
    pad_token_id: 0,
    torch_dtype: 'bfloat16',
};
const DEVIATION = 0.02;
const TABLE_LENGTH = 1 << 16;

function shapes(c) {
    const keys = (c.hidden_size / c.num_attention_heads) * c.num_key_value_heads;
    const layer = {
        input_layernorm: [c.hidden_size],
        'self_attn.q_proj': [c.hidden_size, c.hidden_size],
        'self_attn.k_proj': [keys, c.hidden_size],
        'self_attn.v_proj': [keys, c.hidden_size],
        'self_attn.o_proj': [c.hidden_size, c.hidden_size],
        post_attention_layernorm: [c.hidden_size],
        'mlp.gate_proj': [c.intermediate_size, c.hidden_size],
        'mlp.up_proj': [c.intermediate_size, c.hidden_size],
        'mlp.down_proj': [c.hidden_size, c.intermediate_size],
    };
    const list = [['model.embed_tokens.weight', [c.vocab_size, c.hidden_size]]];
    for (let i = 0; i < c.num_hidden_layers; i++) {
        for (const [name, shape] of Object.entries(layer))
            list.push([`model.layers.${i}.${name}.weight`, shape]);
    }
    return [...list, ['model.norm.weight', [c.hidden_size]]];
}

// Any 32-bit state to the next (xorshift).
function step(state) {
    let x = state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return x >>> 0;
}

function normalTable() {
    const floats = new Float32Array(TABLE_LENGTH);
    let state = 88172645;
    const uniform = () => {
        state = step(state);
        return (state + 1) / 4294967297;
    };
    for (let i = 0; i < TABLE_LENGTH; i++) {
        floats[i] = DEVIATION * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    }
    const bits = new Uint32Array(floats.buffer);
    return Uint16Array.from(bits, (b) => b >>> 16);
}

function writeWeights(path, list) {
    const header = {};
    let offset = 0;
    for (const [name, shape] of list) {
        const bytes = 2 * shape.reduce((a, b) => a * b, 1);
        header[name] = { dtype: 'BF16', shape, data_offsets: [offset, (offset += bytes)] };
    }
    const text = JSON.stringify(header);
    const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8, ' '));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(head.length));
    const file = openSync(path, 'w');
    writeSync(file, length);
    writeSync(file, head);
    const table = normalTable();
    let state = 2463534242;
    for (const [name, shape] of list) {
        const values = new Uint16Array(shape.reduce((a, b) => a * b, 1));
        for (let i = 0; i < values.length; i++) {
            state = step(state);
            values[i] = table[state & (TABLE_LENGTH - 1)];
        }
        if (name.includes('norm')) values.fill(0x3f80); // 1.0
        writeSync(file, values);
    }
    closeSync(file);
}

export function writeRandomModel(folder) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'config.json'), `${JSON.stringify(CONFIG, null, 2)}\n`);
    writeWeights(join(folder, 'model.safetensors'), shapes(CONFIG));
    for (const name of ['tokenizer.json', 'tokenizer_config.json'])
        copyFileSync(join(SAMPLE, name), join(folder, name));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeRandomModel(process.argv[2]);
