// The steps that led to a version: duration, attempts, cost, errors.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { isCut, partUrl, type Listed, type VersionWhole } from "./api";
import { pointOf } from "./graph";
import { ancestors } from "./lanes";
import { written } from "./node";
import { useNow } from "./now";
import type { Failure, Implementation, Node, Try } from "./types";
import { VirtualList } from "./virtual";
import { amounts, clock, size, span } from "./words";

/** Characters of a collapsed result. */
const SHORT = 200;

interface Props {
  versions: Listed[];
  /** Failed attempts, by the version that they led to. */
  tries: Map<number | null, Try[]>;
  head: number;
  chosen: number;
  onChoose: (version: number) => void;
  onEnd: () => void;
}

type Line = { step: Listed } | { failed: Try; version: number | null };

export function Steps({ versions, tries, head, chosen, onChoose, onEnd }: Props) {
  const lines = useMemo(() => {
    const line = ancestors(versions.map(pointOf), chosen);
    const failed = (version: number | null): Line[] => [...(tries.get(version) ?? [])].reverse().map((each) => ({ failed: each, version }));
    const shown = versions.filter((each) => line.has(each.version)).flatMap((step): Line[] => [{ step }, ...failed(step.version)]);
    return chosen === head ? [...failed(null), ...shown] : shown;
  }, [versions, tries, head, chosen]);
  const longest = useMemo(() => lines.reduce((most, line) => Math.max(most, "step" in line ? (line.step.took ?? 0) : 0), 0.001), [lines]);
  return (
    <VirtualList
      label="Steps"
      rows={lines.length}
      height={46}
      chosen={0}
      shown={chosen}
      onEnd={onEnd}
      row={(place) => {
        const line = lines[place] as Line;
        if ("failed" in line) return <TryRow key={line.failed.cursor} failed={line.failed} onChoose={() => onChoose(line.version ?? head)} />;
        const { step } = line;
        return (
          <button
            key={step.version}
            type="button"
            class={`step-row ${step.failed || step.damaged ? "error" : ""}`}
            aria-current={step.version === chosen ? "true" : undefined}
            onClick={() => onChoose(step.version)}
          >
            <span class="n soft number">{step.version}</span>
            <span class="what">
              <span class="step-name cut">{step.address ?? step.step ?? step.kind}</span>
              <span class="soft cut">{said(step)}</span>
            </span>
            <span class="took soft">
              {span(step.took)}
              {step.took !== null && <i style={{ width: `${(100 * step.took) / longest}%` }} />}
            </span>
          </button>
        );
      }}
    />
  );
}

function TryRow({ failed, onChoose }: { failed: Try; onChoose: () => void }) {
  return (
    <button type="button" class="step-row try" onClick={onChoose} title={failed.error}>
      <span class="n number" aria-hidden="true">
        {failed.delay === null ? "✕" : "↻"}
      </span>
      <span class="what">
        <span class="cut">
          attempt {failed.attempt} failed: {failed.address}
        </span>
        <span class="cut">{failed.error}</span>
      </span>
      <span class="took soft">{failed.delay !== null && failed.delay >= 0.001 ? `waited ${span(failed.delay)}` : ""}</span>
    </button>
  );
}

function said(step: Listed): string {
  if (step.damaged) return "damaged, it cannot be read: run holdfast verify";
  const parts = [
    step.failed ? (step.error?.message ?? "failed") : step.address && step.kind !== "step" ? step.kind : "",
    step.attempt > 1 ? `attempt ${step.attempt}` : "",
    ...amounts(step.annotations),
    typeof step.annotations?.model === "string" ? step.annotations.model : "",
    step.actor ? `by ${step.actor}` : "",
    step.note ?? "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The implementation of a step, in one line. */
export function ran(found: Implementation | null): string {
  return found ? `${found.name} ${found.code}${found.overridden ? " (override)" : ""}` : "";
}

const MONO = new Set(["key", "attachments", "ran", "arguments", "result", "metadata", "hash"]);

export function VersionFacts({ version, tries }: { version: VersionWhole; tries: Try[] }) {
  const now = useNow();
  const at = `${version.run}@${version.version}`;
  const facts: [string, ComponentChildren][] = [
    ["at", clock(version.at, now)],
    ["took", span(version.took)],
    ["attempt", version.attempt > 1 ? String(version.attempt) : ""],
    ["timeline", String(version.timeline)],
    ["by", version.actor ?? ""],
    ["note", version.note ?? ""],
    ["key", version.key ?? ""],
    ["attachments", version.attachments.join(", ")],
    ["ran", ran(version.implementation)],
    ["arguments", version.arguments.count ? <Given node={version.arguments} at={at} of="arguments" /> : ""],
    ["result", version.result.kind === "none" ? "" : <Given node={version.result} at={at} of="result" />],
    ["annotations", version.annotations.kind === "none" ? "" : written(version.annotations)],
    ["size", size(version.size)],
    ["hash", version.hash.slice(0, 16)],
  ];
  return (
    <div class="version-facts" tabIndex={0} role="region" aria-label={`Version ${version.version}`}>
      <dl class="facts">
        {facts
          .filter(([, text]) => text)
          .map(([name, text]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd class={MONO.has(name) ? "mono" : ""}>{text}</dd>
            </div>
          ))}
      </dl>
      {version.error && <FailureNote failure={version.error} />}
      {tries.length > 0 && (
        <div class="traceback">
          {tries.map((each) => (
            <p key={each.cursor}>
              {clock(each.at, now)} · attempt {each.attempt} at {each.address}: {each.error}
            </p>
          ))}
        </div>
      )}
    </div>
  );
}

/** Arguments or result of a step: in one line, expandable, or as a file if too large. */
function Given({ node, at, of }: { node: Node; at: string; of: "arguments" | "result" }) {
  const text = written(node);
  if (text.length <= SHORT && !isCut(node)) return <>{text}</>;
  return (
    <details>
      <summary class="cut">{text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text}</summary>
      <pre>{text}</pre>
      {isCut(node) && (
        <a href={partUrl(at, of)} download>
          all of it, as a file
        </a>
      )}
    </details>
  );
}

export function FailureNote({ failure, within = false }: { failure: Failure; within?: boolean }) {
  const direct = failure.cause !== undefined && failure.direct !== false;
  const cause = failure.cause ?? (failure.suppressed ? undefined : failure.context);
  return (
    <div class="traceback" role={within ? undefined : "alert"}>
      <strong>
        {failure.type}: {failure.message}
      </strong>
      {failure.traceback && (
        <details>
          <summary>traceback</summary>
          <pre>{failure.traceback}</pre>
        </details>
      )}
      {(failure.notes ?? []).map((note, index) => (
        <p key={index}>{note}</p>
      ))}
      {(failure.errors ?? [])
        .filter((each) => each.same_as === undefined)
        .map((each, index) => (
          <Linked key={index} how={`${index + 1} of ${(failure.errors?.length ?? 0) + (failure.left_out ?? 0)}`} failure={each} />
        ))}
      {cause && cause.same_as === undefined && (
        <Linked how={`${direct ? "caused by" : "while handling"}${failure.skipped ? ` (${failure.skipped} left out)` : ""}`} failure={cause} />
      )}
    </div>
  );
}

/** An error that belongs to another: its cause, or a member of a group. */
function Linked({ how, failure }: { how: string; failure: Failure }) {
  return (
    <div class="cause">
      <span class="soft">{how}</span>
      <FailureNote failure={failure} within />
    </div>
  );
}
