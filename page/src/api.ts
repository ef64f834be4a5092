// Client of the server's API: one function per operation. Failures are ApiErrors with the server's message.

import type { Session } from "./session";
import type {
  AuditEntry,
  Blame,
  Breaker,
  BrokenLoop,
  Implementation,
  Comparison,
  Diff,
  Event,
  Failure,
  Loop,
  LoopWhole,
  PruneResult,
  Node,
  Preview,
  Question,
  Restored,
  Run,
  Snapshots,
  Task,
  Timeline,
  Try,
  Version,
} from "./types";

const ROOT = "api/v1";
/** Milliseconds between polls of a running task. */
const LOOK = 300;
/** Number of differences on one page. */
const SHOWN = 300;

export const STREAM = `${ROOT}/events/stream`;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    detail: string,
  ) {
    super(detail);
  }
}

export const isMissing = (error: unknown): boolean => error instanceof ApiError && error.status === 404;

/** Limits or spending of a run, its children included: cost, tokens, steps, seconds. */
export type Spending = Record<string, number>;

export interface RunWhole extends Run {
  failure: Failure | null;
  waits: string[];
  questions: Question[];
  parent: string | null;
  children: string[];
  totals: Record<string, unknown>;
  limits: Spending | null;
  spent: Spending;
  timelines: Timeline[];
}

export interface Listed extends Version {
  annotations?: Record<string, unknown> | null;
  error?: Failure | null;
}

/** A version with the facts of its step, truncated for display. */
export type VersionWhole = Version & { implementation: Implementation | null; arguments: Node; result: Node; annotations: Node; attachments: string[]; error: Failure | null; failure: Failure | null };

export interface Stats {
  store: string;
  runs: number;
  versions: number;
  events: number;
  artifacts: number;
  artifact_bytes: number;
  pack_bytes: number;
  file_bytes: number | null;
  statuses: Record<string, number>;
  largest: Run[];
}

type Query = Record<string, string | number | boolean | null | undefined | readonly string[]>;

async function send(method: string, path: string, query: Query, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) parameters.append(name, String(each));
  }
  const tail = parameters.size ? `?${parameters}` : "";
  try {
    return await fetch(`${ROOT}/${path}${tail}`, {
      method,
      credentials: "same-origin",
      ...(signal ? { signal } : {}),
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server does not respond", "It may have been stopped. Start it again with `holdfast ui`.");
  }
}

async function problemOf(answer: Response): Promise<ApiError> {
  if (answer.status === 401) {
    return new ApiError(401, "This browser is no longer signed in", "The server was restarted: open the address that it printed.");
  }
  const isJson = /json/.test(answer.headers.get("Content-Type") ?? "");
  const problem = (isJson ? await answer.json() : {}) as { title?: string; detail?: string };
  return new ApiError(answer.status, problem.title ?? `The server responded with ${answer.status}`, problem.detail ?? "");
}

async function ask<T>(method: string, path: string, query: Query = {}, body?: unknown, signal?: AbortSignal): Promise<T> {
  const answer = await send(method, path, query, body, signal);
  if (!answer.ok) throw await problemOf(answer);
  return (await answer.json()) as T;
}

const get = <T>(path: string, query: Query = {}, signal?: AbortSignal) => ask<T>("GET", path, query, undefined, signal);

/** An id as a part of a path. Browsers resolve `.` and `..` as folders, even percent-encoded. */
function name(id: string): string {
  if (id === "." || id === "..") throw new ApiError(0, "The page cannot address this name", `A URL cannot have a part '${id}'. Use the command line.`);
  if (/\p{Surrogate}/u.test(id)) throw new ApiError(0, "The page cannot address this name", "It is not valid Unicode. Use the command line.");
  return encodeURIComponent(id);
}

/** The path for a reference such as RUN@12. */
function parts(at: string): string {
  const split = at.lastIndexOf("@");
  return `runs/${name(at.slice(0, split))}/versions/${name(at.slice(split + 1))}`;
}

/** Wait for a task to end. */
async function awaitTask(task: Task): Promise<Task> {
  let seen = task;
  while (seen.status === "running") {
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    seen = await get<Task>(`tasks/${seen.id}`);
  }
  if (seen.status === "failed") {
    throw new ApiError(0, seen.error?.title ?? "It failed", seen.error?.detail ?? "");
  }
  return seen;
}

export const HELD = ["failed", "interrupted", "stalled", "paused"];

export interface RunsWanted {
  show: string;
  search: string;
  workflow: string;
  tag: string;
  since: string;
}

export const statusesOf = (show: string): string[] => (show === "needs" ? [] : show === "held" ? HELD : show ? [show] : []);

export const runs = ({ show, ...wanted }: RunsWanted, page: { limit: number; after: string | null }, signal?: AbortSignal) =>
  get<{ runs: Run[]; next: string | null }>("runs", { status: statusesOf(show), asking: show === "needs" || null, ...wanted, ...page }, signal);

/** The most runs that ask that are counted. */
export const ASKING = 100;
const ASKS: RunsWanted = { show: "needs", search: "", workflow: "", tag: "", since: "" };

/** The number of runs for each chip; at most `ASKING` for those that ask. */
export async function counts(): Promise<Record<string, number>> {
  const [{ statuses }, asking] = await Promise.all([stats(), runs(ASKS, { limit: ASKING, after: null })]);
  const held = HELD.reduce((sum, status) => sum + (statuses[status] ?? 0), 0);
  return { ...statuses, held, needs: asking.runs.length };
}

export const run = (id: string, signal?: AbortSignal) => get<RunWhole>(`runs/${name(id)}`, { cut: true }, signal);

export const versions = (id: string, page: { before: string | null; limit: number }, signal?: AbortSignal) =>
  get<{ versions: Listed[]; head: number; next: number | null }>(`runs/${name(id)}/versions`, { ...page, annotations: true }, signal);

/** The newest versions, without annotations. */
export const lineage = (id: string, limit: number, signal?: AbortSignal) => get<{ versions: Version[] }>(`runs/${name(id)}/versions`, { limit }, signal);

export const version = (id: string, number: number, signal?: AbortSignal) =>
  get<VersionWhole>(`runs/${name(id)}/versions/${number}`, { cut: true }, signal);

export async function state(
  at: string,
  wanted: { path: string; depth?: number; limit?: number; offset?: number; text?: number },
  signal?: AbortSignal,
): Promise<Node> {
  const found = await get<{ node: Node }>(`${parts(at)}/state`, { depth: 0, ...wanted }, signal);
  return found.node;
}

/** A part of a state as JSON, to be edited; undefined if it is too large for that. */
export async function wholeState(at: string, path: string, most: number, signal: AbortSignal): Promise<{ value: unknown } | undefined> {
  const look = await state(at, { path, depth: 20, limit: 1000, text: most }, signal);
  return isCut(look) ? undefined : get<{ value: unknown }>(`${parts(at)}/state`, { path }, signal);
}

/** Whether a value is truncated. */
export function isCut(node: Node): boolean {
  const isClosed = (node.kind === "dict" || node.kind === "list") && node.count !== 0 && !node.entries;
  return isClosed || (node.more ?? 0) > 0 || (node.entries ?? []).some((entry) => isCut(entry.node));
}

export async function blame(at: string, path: string): Promise<Blame> {
  const found = await get<Blame[]>(`${parts(at)}/blame`, { path, depth: 0 });
  if (!found[0]) throw new ApiError(404, "No version found", path);
  return found[0];
}

/** URL of the bytes of a large value in a state. */
export const rawUrl = (at: string, path: string) => `${ROOT}/${parts(at)}/raw?path=${name(path)}`;
export const partUrl = (at: string, of: "arguments" | "result") => `${ROOT}/${parts(at)}/raw?of=${of}`;
export const snapshotUrl = (at: string) => `${ROOT}/${parts(at)}/snapshot`;
export const bundleUrl = (id: string) => `${ROOT}/runs/${name(id)}/bundle`;

export const diff = (a: string, b: string, path: string, signal?: AbortSignal) => get<Diff>("diff", { a, b, path, cut: true, limit: SHOWN }, signal);

export const compare = (a: string, b: string, signal?: AbortSignal) => get<Comparison>("compare", { a, b, cut: true, limit: 1000 }, signal);

/** The failed attempts of a run after a cursor, oldest first: a page of the journal. */
export async function tries(id: string, after: number, signal: AbortSignal): Promise<{ tries: Try[]; cursor: number; more: boolean }> {
  const kind = ["step.retried", "step.failed"];
  const found = await get<{ events: Event[]; cursor: number; more: boolean }>("events", { run: id, kind, after, limit: 1000 }, signal);
  const tries = found.events.flatMap(({ cursor, at, version, step, data }) => {
    // A failure that the workflow handled has its own version.
    if (version !== null) return [];
    const { address, attempt, error, delay } = data as Partial<Try>;
    return [{ cursor, at, address: address ?? step ?? "", attempt: attempt ?? 1, error: error ?? "", delay: delay ?? null }];
  });
  return { tries, cursor: found.cursor, more: found.more };
}

export const preview = (id: string, to: number | null, resume: boolean, signal?: AbortSignal) =>
  get<Preview>(`runs/${name(id)}/preview`, { to, resume }, signal);

export const resume = async (id: string, limits: Spending | null = null) =>
  awaitTask(await ask<Task>("POST", `runs/${name(id)}/resume`, {}, limits === null ? {} : { limits }));

export const rollback = async (id: string, to: number, how: { resume: boolean; reason: string }) =>
  awaitTask(await ask<Task>("POST", `runs/${name(id)}/rollback`, {}, { to, resume: how.resume, reason: how.reason || null }));

export interface Fork {
  run: string | null;
  state?: unknown;
  set?: Record<string, unknown>;
  resume: boolean;
}

export const fork = async (at: string, how: Fork) => awaitTask(await ask<Task>("POST", `${parts(at)}/fork`, {}, how));

export const cancel = (id: string) => ask("POST", `runs/${name(id)}/cancel`, {}, {});
export const pause = (id: string) => ask("POST", `runs/${name(id)}/pause`, {}, {});
export const tag = (at: string, text: string) => ask("PUT", `${parts(at)}/tags/${name(text)}`);
export const untag = (at: string, text: string) => ask("DELETE", `${parts(at)}/tags/${name(text)}`);
export const pin = (at: string) => ask("PUT", `${parts(at)}/pin`);
export const unpin = (at: string) => ask("DELETE", `${parts(at)}/pin`);

export interface QuestionsWanted {
  answered?: boolean;
  run?: string;
  workflow?: string;
  assignee?: string;
  /** Seconds. */
  waiting_longer_than?: number | null;
  /** The id of the last question of the previous page. */
  after?: string | null;
}

/** The most questions of one page. */
export const QUESTIONS = 100;

export const inbox = (wanted: QuestionsWanted, signal?: AbortSignal) =>
  get<Question[]>("inbox", { ...wanted, limit: QUESTIONS }, signal);

export const question = (id: string, signal?: AbortSignal) => get<Question>(`inbox/${name(id)}`, {}, signal);

/** Who is to answer, and by when, in seconds from now. What is not given stays; null removes it. */
export interface Assignment {
  assignee?: string | null;
  priority?: number;
  due?: number | null;
  remind_every?: number | null;
  escalate_after?: number | null;
  escalate_to?: string | null;
}

export const assign = (id: string, how: Assignment) => ask<Question>("POST", `inbox/${name(id)}/assign`, {}, how);

export const answer = async (id: string, how: { value: unknown; to?: number; keep?: string[] }) =>
  awaitTask(await ask<Task>("POST", `inbox/${name(id)}/answer`, {}, how));

interface LoopPage {
  projects: (Loop | BrokenLoop)[];
  next: string | null;
}

export async function loops(page: { limit: number; after: string | null }, signal?: AbortSignal): Promise<LoopPage> {
  const found = await get<LoopPage>("loops", page, signal);
  return { ...found, projects: found.projects.map((each) => ({ ...each, project_id: plain(each.project_id) })) };
}

/** A text of a reply. One that is not valid Unicode is sent in another form, with its escapes. */
const plain = (text: string | { value: string }): string => (typeof text === "string" ? text : text.value);

export const loop = (id: string, signal?: AbortSignal) => get<LoopWhole>(`loops/${name(id)}`, {}, signal);
export const snapshots = (id: string, limit: number, signal?: AbortSignal) => get<Snapshots>(`loops/${name(id)}/snapshots`, { limit }, signal);
export const audit = (id: string, limit: number, signal?: AbortSignal) =>
  get<{ audit: AuditEntry[] }>(`loops/${name(id)}/audit`, { limit }, signal);
export const saveSnapshot = (id: string, how: { tags: string[]; note: string | null }) => ask("POST", `loops/${name(id)}/snapshots`, {}, how);
export const restoreLoop = (id: string, how: { version: number; reason: string | null; keep_unknown: boolean }) =>
  ask<Restored>("POST", `loops/${name(id)}/restore`, {}, how);
export const resetAgent = (id: string, agent: string, reason: string | null) =>
  ask("POST", `loops/${name(id)}/agents/${name(agent)}/reset`, {}, { reason });
export const configureLoop = (id: string, settings: Record<string, unknown>) => ask("POST", `loops/${name(id)}/config`, {}, settings);

export const breakers = (signal?: AbortSignal) => get<Breaker[]>("breakers", {}, signal);
export const resetBreaker = (id: string) => ask<Breaker>("POST", `breakers/${name(id)}/reset`, {}, {});

export const session = () => get<Session>("session");
export const stats = (signal?: AbortSignal) => get<Stats>("stats", {}, signal);
export const verify = () => ask<Task>("POST", "verify", {}, {});
export const task = (id: string) => get<Task>(`tasks/${id}`);


/** Retention rules: a version is kept if any rule keeps it. */
export interface Rules {
  last?: number;
  within?: string;
  hourly?: number;
  daily?: number;
  weekly?: number;
}

export async function prune(run: string, rules: Rules, dryRun: boolean): Promise<PruneResult> {
  const which = run ? { runs: [run] } : { all: true };
  const done = await awaitTask(await ask<Task>("POST", "prune", {}, { ...which, ...rules, dry_run: dryRun }));
  return done.result as PruneResult;
}
