/* sql.h - every SQL statement of the project, by name. Shared by db.c, which prepares them, and by
 * the files of this folder that run them; nobody else writes SQL.
 *
 * Parameters are positional and bound in order; columns are read by position, so the order here is
 * a contract with the one function that uses the statement. */
#ifndef PLIMSOLL_SERVER_STORE_SQL_H
#define PLIMSOLL_SERVER_STORE_SQL_H

#define SQL_JOB_COLUMNS                                                                            \
    "number,id,created_at,queued_ms,started_at,finished_at,status,phase,wish,request,spec,plan,"   \
    "rank_pid,rank_start,rank_boot,event_offset,seq,step,total_steps,loss,first_loss,"             \
    "tokens_per_second,step_seconds,trained_tokens,memory,outcome,error,crashes,crash_step,"       \
    "result,"                                                                                      \
    "fine_tuned_model,results_file,run_ms,model,training_file"

#define SQL_FILE_COLUMNS "number,id,created_at,filename,purpose,bytes,status,details,report,path"

/* In the order of memory_value_name. */
#define SQL_MEMORY_VALUES                                                                          \
    "allocated,reserved,peak,step_peak,capacity,largest_free_block,overhead,others,device_used,"   \
    "device_total,host_used"

#define SQL_STATEMENTS(X)                                                                          \
    X(SQL_FILE_INSERT, "INSERT OR REPLACE INTO "                                                   \
                       "files(id,created_at,filename,purpose,bytes,status,details,report,path)"    \
                       " VALUES(?,?,?,?,?,?,?,?,?)")                                               \
    X(SQL_FILE_GET, "SELECT " SQL_FILE_COLUMNS " FROM files WHERE id=?")                           \
    X(SQL_FILE_DELETE, "DELETE FROM files WHERE id=?")                                             \
    X(SQL_FILE_LIST_DESC,                                                                          \
      "SELECT " SQL_FILE_COLUMNS " FROM files WHERE (?1 IS NULL OR purpose=?1) AND number<?2"      \
      " ORDER BY number DESC LIMIT ?3")                                                            \
    X(SQL_FILE_LIST_ASC,                                                                           \
      "SELECT " SQL_FILE_COLUMNS " FROM files WHERE (?1 IS NULL OR purpose=?1) AND number>?2"      \
      " ORDER BY number ASC LIMIT ?3")                                                             \
    X(SQL_JOB_INSERT,                                                                              \
      "INSERT INTO jobs(id,created_at,queued_ms,status,phase,request,spec,model,training_file,"    \
      "idempotency_key,request_hash,seq) VALUES(?,?,?,?,?,?,?,?,?,?,?,0)")                         \
    X(SQL_JOB_GET, "SELECT " SQL_JOB_COLUMNS " FROM jobs WHERE id=?")                              \
    X(SQL_JOB_BY_KEY, "SELECT id,request_hash FROM jobs WHERE idempotency_key=?")                  \
    X(SQL_JOB_LIST, "SELECT " SQL_JOB_COLUMNS " FROM jobs WHERE number<? ORDER BY number DESC")    \
    X(SQL_JOB_ACTIVE, "SELECT " SQL_JOB_COLUMNS                                                    \
                      " FROM jobs WHERE status IN('validating_files','running') ORDER BY number")  \
    X(SQL_JOB_QUEUED,                                                                              \
      "SELECT " SQL_JOB_COLUMNS " FROM jobs WHERE status='queued' ORDER BY queued_ms,number")      \
    X(SQL_JOB_WISHED,                                                                              \
      "SELECT " SQL_JOB_COLUMNS                                                                    \
      " FROM jobs WHERE wish IS NOT NULL AND status IN('queued','paused','failed')")               \
    X(SQL_JOB_AHEAD, "SELECT count(*) FROM jobs WHERE status='queued' AND (queued_ms<?1 OR "       \
                     "(queued_ms=?1 AND number<?2))")                                              \
    X(SQL_JOB_COUNTS, "SELECT status,count(*) FROM jobs GROUP BY status")                          \
    X(SQL_JOB_USES_FILE,                                                                           \
      "SELECT id FROM jobs WHERE status IN('queued','validating_files','running','paused')"        \
      " AND (training_file=?1 OR json_extract(request,'$.validation_file')=?1) LIMIT 1")           \
    X(SQL_JOB_TUNED, "SELECT " SQL_JOB_COLUMNS                                                     \
                     " FROM jobs WHERE fine_tuned_model IS NOT NULL ORDER BY number DESC")         \
    X(SQL_JOB_BY_TUNED, "SELECT " SQL_JOB_COLUMNS " FROM jobs WHERE fine_tuned_model=?")           \
    X(SQL_JOB_UPDATE,                                                                              \
      "UPDATE jobs SET queued_ms=?,started_at=?,finished_at=?,status=?,phase=?,plan=?,rank_pid=?," \
      "rank_start=?,rank_boot=?,event_offset=?,seq=?,step=?,total_steps=?,loss=?,first_loss=?,"    \
      "tokens_per_second=?,step_seconds=?,trained_tokens=?,memory=?,outcome=?,error=?,crashes=?,"  \
      "crash_step=?,"                                                                              \
      "result=?,fine_tuned_model=?,results_file=?,run_ms=?,spec=? WHERE number=?")                 \
    X(SQL_RANK_GET, "SELECT event_offset FROM ranks WHERE job=? AND rank=?")                       \
    X(SQL_RANK_PUT, "INSERT OR REPLACE INTO ranks(job,rank,event_offset) VALUES(?,?,?)")           \
    X(SQL_JOB_WISH, "UPDATE jobs SET wish=? WHERE id=?")                                           \
    X(SQL_JOB_WISH_GET, "SELECT wish FROM jobs WHERE number=?")                                    \
    X(SQL_JOB_UNTUNE, "UPDATE jobs SET fine_tuned_model=NULL,result=NULL WHERE number=?")          \
    X(SQL_EVENT_INSERT, "INSERT INTO events(job,seq,kind,time_ms,data) VALUES(?,?,?,?,?)")         \
    X(SQL_EVENT_AFTER,                                                                             \
      "SELECT seq,kind,time_ms,data FROM events WHERE job=? AND seq>? ORDER BY seq LIMIT ?")       \
    X(SQL_EVENT_BEFORE, "SELECT seq,kind,time_ms,data FROM events WHERE job=? AND seq<?"           \
                        " AND kind NOT IN('job','memory') ORDER BY seq DESC LIMIT ?")              \
    X(SQL_EVENT_OF_KINDS, "SELECT seq,kind,time_ms,data FROM events WHERE job=? AND seq<?"         \
                          " AND instr(','||?||',',','||kind||',')>0 ORDER BY seq DESC LIMIT ?")    \
    X(SQL_EVENT_PRUNE, "DELETE FROM events WHERE job=? AND seq<=? AND kind IN('step','memory')")   \
    X(SQL_EVENT_LOST, "SELECT 1 FROM jobs WHERE number=? AND pruned_seq>?")                        \
    X(SQL_EVENT_PRUNED, "UPDATE jobs SET pruned_seq=max(pruned_seq,?2) WHERE number=?1")           \
    X(SQL_STEP_PUT,                                                                                \
      "INSERT OR REPLACE INTO steps(job,step,loss,grad_norm,learning_rate,tokens_per_second,"      \
      "accuracy) VALUES(?,?,?,?,?,?,?)")                                                           \
    X(SQL_STEP_RANGE,                                                                              \
      "SELECT min(step),max(step) FROM steps WHERE job=?1 AND step>=?2 AND step<=?3")              \
    X(SQL_STEP_SCAN,                                                                               \
      "SELECT step,loss,grad_norm,learning_rate,tokens_per_second,accuracy FROM steps"             \
      " WHERE job=? AND step>=? AND step<=? ORDER BY step")                                        \
    X(SQL_MEMORY_PUT,                                                                              \
      "INSERT OR REPLACE INTO memory(job,rank,step,time_ms," SQL_MEMORY_VALUES ","                 \
      "weights,adapters,gradients,optimizer,activations,workspace,communication,staging)"          \
      " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")                                    \
    X(SQL_MEMORY_RANGE,                                                                            \
      "SELECT min(step),max(step) FROM memory WHERE job=?1 AND step>=?2 AND step<=?3")             \
    X(SQL_MEMORY_SCAN,                                                                             \
      "SELECT rank,step,time_ms," SQL_MEMORY_VALUES ",weights,adapters,gradients,optimizer,"       \
      "activations,workspace,communication,staging FROM memory"                                    \
      " WHERE job=? AND step>=? AND step<=? ORDER BY rank,step")                                   \
    X(SQL_LATEST_PUT,                                                                              \
      "INSERT OR REPLACE INTO latest(job,rank,kind,time_ms,data) VALUES(?,?,?,?,?)")               \
    X(SQL_LATEST_LIST, "SELECT rank,kind,time_ms,data FROM latest WHERE job=? ORDER BY rank,kind") \
    X(SQL_EVAL_PUT, "INSERT OR REPLACE INTO evals(job,step,loss,accuracy) VALUES(?,?,?,?)")        \
    X(SQL_EVAL_LIST,                                                                               \
      "SELECT step,loss,accuracy FROM evals WHERE job=? AND step>=? AND step<=? ORDER BY step")    \
    X(SQL_SAMPLE_PUT, "INSERT OR REPLACE INTO samples(job,step,prompt,text) VALUES(?,?,?,?)")      \
    X(SQL_SAMPLE_LIST,                                                                             \
      "SELECT step,prompt,text FROM (SELECT step,prompt,text FROM samples WHERE job=?"             \
      " ORDER BY step DESC LIMIT ?) ORDER BY step")                                                \
    X(SQL_CHECKPOINT_PUT,                                                                          \
      "INSERT OR REPLACE INTO checkpoints(job,step,created_at,path) VALUES(?,?,?,?)")              \
    X(SQL_CHECKPOINT_LIST,                                                                         \
      "SELECT c.step,c.created_at,c.path,s.loss,s.accuracy,v.loss,v.accuracy FROM checkpoints c"   \
      " LEFT JOIN steps s ON s.job=c.job AND s.step=c.step"                                        \
      " LEFT JOIN evals v ON v.job=c.job AND v.step=c.step"                                        \
      " WHERE c.job=? AND c.step<? ORDER BY c.step DESC")                                          \
    X(SQL_INSPECTION_GET, "SELECT report FROM inspections WHERE path=? AND stamp=?")               \
    X(SQL_INSPECTION_PUT, "INSERT OR REPLACE INTO inspections(path,stamp,report) VALUES(?,?,?)")   \
    X(SQL_INSPECTION_FORGET, "DELETE FROM inspections WHERE substr(path,1,length(?1))=?1")

#define SQL_NAME(name, text) name,
enum sql_name { SQL_STATEMENTS(SQL_NAME) SQL_COUNT };
#undef SQL_NAME

/* Migrations in order: number N brings a database from user_version N to N + 1. Never edited once
 * released, only appended to. */
#define SQL_MIGRATION_1                                                                            \
    "CREATE TABLE files(number INTEGER PRIMARY KEY AUTOINCREMENT,id TEXT NOT NULL UNIQUE,"         \
    " created_at INTEGER NOT NULL,filename TEXT NOT NULL,purpose TEXT NOT NULL,"                   \
    " bytes INTEGER NOT NULL,status TEXT NOT NULL,details TEXT,report TEXT,path TEXT NOT NULL);"   \
    "CREATE TABLE jobs(number INTEGER PRIMARY KEY AUTOINCREMENT,id TEXT NOT NULL UNIQUE,"          \
    " idempotency_key TEXT UNIQUE,request_hash TEXT,created_at INTEGER NOT NULL,"                  \
    " queued_ms INTEGER NOT NULL,started_at INTEGER,finished_at INTEGER,status TEXT NOT NULL,"     \
    " phase TEXT NOT NULL,wish TEXT,model TEXT NOT NULL,training_file TEXT NOT NULL,"              \
    " request TEXT NOT NULL,spec TEXT NOT NULL,plan TEXT,rank_pid INTEGER,rank_start INTEGER,"     \
    " rank_boot TEXT,event_offset INTEGER NOT NULL DEFAULT 0,seq INTEGER NOT NULL DEFAULT 0,"      \
    " pruned_seq INTEGER NOT NULL DEFAULT 0,step INTEGER NOT NULL DEFAULT 0,"                      \
    " total_steps INTEGER NOT NULL DEFAULT 0,loss REAL,first_loss REAL,tokens_per_second "         \
    "REAL,step_seconds REAL,"                                                                      \
    " trained_tokens INTEGER NOT NULL DEFAULT 0,memory TEXT,outcome TEXT,error TEXT,"              \
    " crashes INTEGER NOT NULL DEFAULT 0,crash_step INTEGER NOT NULL DEFAULT 0,result TEXT,"       \
    " fine_tuned_model TEXT,results_file TEXT,run_ms INTEGER NOT NULL DEFAULT 0);"                 \
    "CREATE INDEX jobs_by_status ON jobs(status);"                                                 \
    "CREATE TABLE events(job INTEGER NOT NULL,seq INTEGER NOT NULL,kind TEXT NOT NULL,"            \
    " time_ms INTEGER NOT NULL,data TEXT NOT NULL,PRIMARY KEY(job,seq)) WITHOUT ROWID;"            \
    "CREATE TABLE steps(job INTEGER NOT NULL,step INTEGER NOT NULL,loss REAL,grad_norm REAL,"      \
    " learning_rate REAL,tokens_per_second REAL,accuracy REAL,PRIMARY KEY(job,step)) WITHOUT "     \
    "ROWID;"                                                                                       \
    "CREATE TABLE memory(job INTEGER NOT NULL,step INTEGER NOT NULL,time_ms INTEGER,"              \
    " allocated INTEGER,reserved INTEGER,peak INTEGER,capacity INTEGER,weights INTEGER,"           \
    " adapters INTEGER,gradients INTEGER,optimizer INTEGER,activations INTEGER,"                   \
    " workspace INTEGER,communication INTEGER,staging INTEGER,"                                    \
    " PRIMARY KEY(job,step)) WITHOUT ROWID;"                                                       \
    "CREATE TABLE evals(job INTEGER NOT NULL,step INTEGER NOT NULL,loss REAL,accuracy REAL,"       \
    " PRIMARY KEY(job,step)) WITHOUT ROWID;"                                                       \
    "CREATE TABLE samples(job INTEGER NOT NULL,step INTEGER NOT NULL,prompt TEXT NOT NULL,"        \
    " text TEXT NOT NULL,PRIMARY KEY(job,step,prompt)) WITHOUT ROWID;"                             \
    "CREATE TABLE checkpoints(job INTEGER NOT NULL,step INTEGER NOT NULL,"                         \
    " created_at INTEGER NOT NULL,path TEXT NOT NULL,PRIMARY KEY(job,step)) WITHOUT ROWID;"        \
    "CREATE TABLE inspections(path TEXT PRIMARY KEY,stamp TEXT NOT NULL,report TEXT NOT NULL);"

/* Memory by rank, with what else is on the device; and the newest event of a kind of each rank. */
#define SQL_MIGRATION_2                                                                            \
    "ALTER TABLE memory RENAME TO memory_1;"                                                       \
    "CREATE TABLE memory(job INTEGER NOT NULL,rank INTEGER NOT NULL,step INTEGER NOT NULL,"        \
    " time_ms INTEGER,allocated INTEGER,reserved INTEGER,peak INTEGER,step_peak INTEGER,"          \
    " capacity INTEGER,largest_free_block INTEGER,overhead INTEGER,others INTEGER,"                \
    " device_used INTEGER,device_total INTEGER,host_used INTEGER,"                                 \
    " weights INTEGER,adapters INTEGER,gradients INTEGER,optimizer INTEGER,activations INTEGER,"   \
    " workspace INTEGER,communication INTEGER,staging INTEGER,"                                    \
    " PRIMARY KEY(job,rank,step)) WITHOUT ROWID;"                                                  \
    "INSERT INTO memory SELECT job,0,step,time_ms,allocated,reserved,peak,peak,capacity,"          \
    " NULL,NULL,NULL,NULL,NULL,NULL,weights,adapters,gradients,optimizer,activations,workspace,"   \
    " communication,staging FROM memory_1;"                                                        \
    "DROP TABLE memory_1;"                                                                         \
    "CREATE TABLE latest(job INTEGER NOT NULL,rank INTEGER NOT NULL,kind TEXT NOT NULL,"           \
    " time_ms INTEGER,data TEXT NOT NULL,PRIMARY KEY(job,rank,kind)) WITHOUT ROWID;"

/* How far the event files of ranks beyond 0 have been read. */
#define SQL_MIGRATION_3                                                                            \
    "CREATE TABLE ranks(job INTEGER NOT NULL,rank INTEGER NOT NULL,"                               \
    " event_offset INTEGER NOT NULL,PRIMARY KEY(job,rank)) WITHOUT ROWID;"

#endif
