// The records of the API that the page reads, as described by `/api/v1/openapi.json`.

export interface Run {
  id: string;
  status: string;
  workflow: string | null;
  step: string | null;
  head: number;
  versions: number;
  timeline: number;
  created: string;
  updated: string;
  size: number;
  tags: string[];
  origin: string | null;
  alive: boolean;
}

export interface Version {
  run: string;
  version: number;
  parent: number | null;
  merged: number | null;
  timeline: number;
  kind: string;
  status: string;
  step: string | null;
  address: string | null;
  attempt: number;
  failed: boolean;
  damaged: boolean;
  steps: number;
  at: string;
  took: number | null;
  size: number;
  tags: string[];
  pinned: boolean;
  note: string | null;
  actor: string | null;
  /** The name that another system gave it. */
  key: string | null;
  hash: string;
}

/** The code that ran as a step. */
export interface Implementation {
  name: string;
  code: string;
  overridden: boolean;
}

export interface Failure {
  type?: string;
  message?: string;
  traceback?: string;
  notes?: string[];
  /** `raise … from`; in old records the context, if `direct` is false. */
  cause?: Failure;
  direct?: boolean;
  /** The error that was being handled. */
  context?: Failure;
  suppressed?: boolean;
  /** Number of causes that are omitted before the one shown. */
  skipped?: number;
  /** Members of a group. */
  errors?: Failure[];
  left_out?: number;
  /** An error that is described elsewhere. */
  same_as?: number;
}

export interface Entry {
  key: unknown;
  label: string;
  /** Null for a key that cannot be written in a path. */
  path: string | null;
  node: Node;
}

export interface Node {
  kind: string;
  value?: unknown;
  count?: number;
  entries?: Entry[];
  more?: number;
}

export interface Change {
  kind: "added" | "removed" | "changed" | "moved";
  of: "state" | "version";
  path: string;
  source: string | null;
  /** Truncated; null if there was, or is, no value. */
  old: Node | null;
  new: Node | null;
}

export interface Diff {
  a: string;
  b: string;
  changes: Change[];
  /** The total number; only the first are included. */
  count: number;
}

export interface Comparison extends Diff {
  steps: Pair[];
  step_count: number;
}

export interface Pair {
  step: string | null;
  address: string | null;
  kind: string;
  a: number | null;
  b: number | null;
  same: boolean;
  a_code: Implementation | null;
  b_code: Implementation | null;
  /** Null if not recorded. */
  same_code: boolean | null;
}

export interface Blame {
  path: string;
  version: number;
  ref: string;
  step: string | null;
  address: string | null;
  at: string;
}

export interface Preview {
  run: string;
  status: string;
  workflow: string | null;
  version: number;
  left: number[];
  replayed: string[];
  again: string[];
  undo: string[];
  cancelled: string[];
  waits: string[];
  known: boolean;
  /** The effect in sentences. */
  description: string[];
}

export interface Details {
  symptom?: string;
  why?: string;
  since?: string;
  address?: string;
  attempt?: number;
  stack?: string;
  /** Number of automatic recoveries. */
  restores?: number;
  /** The last good version; null for a loop without a snapshot. */
  version?: number | null;
  /** The changes since then, as lines. */
  diff?: string[];
  /** The changes since the first version, by the parts that can be kept. */
  initial?: { path: string; changes: string[] }[];
  choices?: string[];
  /** All reasons of a loop's question, and the agents that stalled. */
  reasons?: string[];
  agents?: string[];
  /** The answer, with the parts of the state that it named. */
  choice?: string;
  keep?: string[];
}

export interface Question {
  id: string;
  run: string;
  address: string;
  text: string;
  opened: string;
  /** When an answer is wanted. */
  due: string | null;
  /** When the run continues without an answer. */
  expires: string | null;
  schema: Schema | null;
  /** What asks: a workflow (`question`), the monitor about a run (`stalled`), a `loop`. */
  kind: string;
  workflow: string | null;
  assignee: string | null;
  priority: number;
  escalated: boolean;
  reminders: number;
  /** The project of a loop. */
  project?: string;
  details?: Details;
  answered?: string;
  actor?: string | null;
  /** Null if it is long: the version of its step has it as its result. */
  answer?: unknown;
}

export interface Schema {
  type?: string;
  enum?: unknown[];
  description?: string;
}

export interface Task {
  id: string;
  kind: string;
  run: string | null;
  status: "running" | "done" | "failed";
  done: number;
  total: number;
  result: unknown;
  error: { title?: string; detail?: string } | null;
}

export interface Report {
  ok: boolean;
  runs: number;
  versions: number;
  artifacts: number;
  problems: { run: string | null; version: number | null; what: string }[];
}

export interface Pruned {
  run: string;
  prune: number[];
  keep: number[];
  bytes: number;
}

/** The versions that are, or would be, pruned. */
export interface PruneResult {
  dry_run: boolean;
  versions: number;
  bytes: number;
  runs: Pruned[];
}

/** A failed attempt at a step. */
export interface Try {
  cursor: number;
  at: string;
  address: string;
  attempt: number;
  error: string;
  /** Seconds until the next one; null if there was none. */
  delay: number | null;
}

export interface Timeline {
  number: number;
  parent: number | null;
  at: string;
  reason: string | null;
  actor: string | null;
}

export interface Event {
  cursor: number;
  run: string;
  kind: string;
  at: string;
  version: number | null;
  step: string | null;
  data: Record<string, unknown>;
}

export interface LoopAgent {
  token: number;
  started: string;
  actor: string | null;
  /** When it counts as stalled; null for never. */
  deadline: string | null;
}

/** A project of the loop engine. */
export interface Loop {
  project_id: string;
  /** The run that has its state. */
  run: string;
  status: "running" | "waiting" | "idle";
  /** Null if its state cannot be read. */
  loop: number | null;
  version: number | null;
  updated: string | null;
  /** The version of the last good snapshot. */
  last_good: number | null;
  agents: Record<string, LoopAgent>;
  question_id: string | null;
  loop_autoresume: boolean;
}

/** A project that cannot be read. */
export interface BrokenLoop {
  project_id: string;
  status: "error";
  message: string;
}

/** Settings of a project; null for the default. */
export interface LoopConfig {
  loop_autoresume: boolean;
  timeout: number | "never" | null;
  timeouts: Record<string, number | "never">;
  retention: Record<string, unknown> | null;
  every: number | null;
  keep_unknown: boolean | null;
  max_restores: number;
  audit_retention: Record<string, unknown> | null;
  question: Record<string, unknown> | null;
}

export interface LoopWhole {
  project: Loop;
  config: LoopConfig;
  /** Agents that were ended from outside. */
  ended: Record<string, { how: string; at: string; actor: string | null }>;
  question: { question_id: string; message: string } | null;
}

export interface Snapshot {
  version: number;
  timestamp: string;
  /** Null if the snapshot is damaged. */
  loop: number | null;
  timeline: number;
  tags: string[];
  pinned: boolean;
  note: string | null;
  actor: string | null;
  kind: string;
  size: number;
  agents_completed: unknown[];
  /** Paths of values that could not be stored. */
  replaced: string[];
  /** The error, if it cannot be read. */
  damaged?: string;
}

export interface Snapshots {
  snapshot_count: number;
  /** Oldest first. */
  snapshots: Snapshot[];
  last_good: number | null;
}

/** The outcome of a restore. */
export interface Restored {
  version: number;
  kept: unknown[];
  skipped: number[];
}

/** An audit entry; the other facts depend on the action. */
export interface AuditEntry {
  at: string;
  action: string;
  actor: string | null;
  reason: string | null;
  [fact: string]: unknown;
}

export interface Breaker {
  name: string;
  status: "closed" | "open" | "half_open";
  failures: number;
  since: string | null;
  /** When it lets a call through again. */
  retry_at: string | null;
  error: string | null;
}
