"""Every error that Backstay raises, in one class tree. Attributes hold the details; the message says what to do.

BackstayError
├── ConfigError            an invalid argument, or two callers of one name disagree on it; also a ValueError
├── WrongLoop              an async Backstay is used from a second event loop
├── Closed                 used after close()
├── EngineError            the engine failed, not the caller
│   ├── EngineUnavailable  the engine is not reachable, or cannot serve now (memory, read-only); nothing was applied
│   │   └── NotReplicated  too few replicas confirmed a grant, so it was released
│   ├── OutcomeUnknown     the reply was lost; the request may have been applied
│   ├── EngineRefused      the server rejected the request: password, permissions, version
│   ├── CorruptRecord      a stored record cannot be decoded
│   └── SchemaTooNew       the database was written by a newer Backstay
├── LockError
│   ├── LockHeld           not free, and the caller does not wait
│   ├── LockTimeout        not free within `wait`; also a TimeoutError
│   ├── QueueFull          `max_waiters` callers already wait
│   ├── NotOwner           the caller releases a lock that it does not hold (any more)
│   ├── LeaseLost          the lease ended before its work did
│   ├── StaleFence         a guarded write came after a newer holder's; nothing was written
│   ├── RowMissing         a guarded update found no row; nothing was written; also a LookupError
│   └── WouldDeadlock      the caller waits for a lock that it holds itself
├── IdempotencyError
│   ├── InProgress         a call with this key is still running after `wait` seconds; also a TimeoutError
│   ├── FingerprintMismatch  this key was used for a call with other arguments
│   └── ReplayedFailure    the call ran before and failed, and `on_error="replay"` stored the failure
├── JobError
│   ├── JobFailed          the job used up its attempts and is a dead letter
│   ├── JobCancelled       the job was cancelled, from outside or by itself
│   ├── JobSkipped         a dependency of the job did not complete
│   ├── JobNotFound        no such job (any more); also a LookupError
│   ├── RetryRefused       a dependency of the job did not succeed and must be retried first
│   ├── ResultTimeout      the job did not finish within `timeout`; also a TimeoutError
│   ├── JobTimeout         an attempt ran longer than its `timeout`; also a TimeoutError
│   ├── CommandFailed      a command exited with an error code or a signal, or its output cannot be parsed
│   ├── UnknownJob         this process does not define the job type; also a LookupError
│   ├── BadArgument        an argument cannot be serialized; also a ValueError
│   ├── BadResult          a result cannot be stored; also a ValueError
│   └── PayloadTooLarge    arguments or a result exceed their size limit; also a ValueError
├── WorkflowError
│   ├── BadDefinition      a workflow is invalid; every problem is listed with its line; also a ValueError
│   ├── BadExpression      an `if` or a `${{ … }}` cannot be parsed; also a ValueError
│   ├── BadInput           inputs do not match the workflow's declaration; also a ValueError
│   ├── RunTooLarge        a run, a job or a text of it exceeds its size limit; also a ValueError
│   ├── WorkflowNotFound   no workflow of this name, or no such version; also a LookupError
│   └── RunNotFound        no such run (any more); also a LookupError
├── N8nError
│   ├── BadWorkflow        a file is not an n8n workflow; also a ValueError
│   ├── WorkspaceError     a workspace is incomplete, invalid or in conflict; nothing was changed
│   ├── PatchRefused       the lock or limit cannot be added to this workflow; nothing was changed
│   ├── N8nUnreachable     no n8n server responds
│   └── N8nRefused         n8n rejected the request
└── RateLimited            the limit is exceeded
"""

from backstay.errors.coordination import (
    Decision,
    FingerprintMismatch,
    HolderInfo,
    IdempotencyError,
    InProgress,
    LeaseLost,
    LockError,
    LockHeld,
    LockTimeout,
    NotOwner,
    QueueFull,
    RateLimited,
    ReplayedFailure,
    RowMissing,
    StaleFence,
    WouldDeadlock,
)
from backstay.errors.engine import (
    BackstayError,
    Closed,
    ConfigError,
    CorruptRecord,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    NotReplicated,
    OutcomeUnknown,
    SchemaTooNew,
    WrongLoop,
)
from backstay.errors.job import (
    BadArgument,
    BadResult,
    CommandFailed,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    JobSkipped,
    JobTimeout,
    PayloadTooLarge,
    ResultTimeout,
    RetryRefused,
    UnknownJob,
)
from backstay.errors.n8n import BadWorkflow, N8nError, N8nRefused, N8nUnreachable, PatchRefused, WorkspaceError
from backstay.errors.workflow import (
    BadDefinition,
    BadExpression,
    BadInput,
    Problem,
    RunNotFound,
    RunTooLarge,
    WorkflowError,
    WorkflowNotFound,
)

__all__ = [
    "BackstayError",
    "BadArgument",
    "BadDefinition",
    "BadExpression",
    "BadInput",
    "BadResult",
    "BadWorkflow",
    "Closed",
    "CommandFailed",
    "ConfigError",
    "CorruptRecord",
    "Decision",
    "EngineError",
    "EngineRefused",
    "EngineUnavailable",
    "FingerprintMismatch",
    "HolderInfo",
    "IdempotencyError",
    "InProgress",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobSkipped",
    "JobTimeout",
    "LeaseLost",
    "LockError",
    "LockHeld",
    "LockTimeout",
    "N8nError",
    "N8nRefused",
    "N8nUnreachable",
    "NotOwner",
    "NotReplicated",
    "OutcomeUnknown",
    "PatchRefused",
    "PayloadTooLarge",
    "Problem",
    "QueueFull",
    "RateLimited",
    "ReplayedFailure",
    "ResultTimeout",
    "RetryRefused",
    "RowMissing",
    "RunNotFound",
    "RunTooLarge",
    "SchemaTooNew",
    "StaleFence",
    "UnknownJob",
    "WorkflowError",
    "WorkflowNotFound",
    "WorkspaceError",
    "WouldDeadlock",
    "WrongLoop",
]

# Tracebacks, pickles and stored failures name the public module, not the file inside this package.
for _name in __all__:
    globals()[_name].__module__ = __name__
