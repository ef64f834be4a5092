// Timelines and versions as lanes next to a list, newest first. Versions that are not ancestors of the head are dimmed.

import { useMemo } from "preact/hooks";

import { ancestors, type Drawing, layOut, type Point } from "./lanes";
import type { Version } from "./types";
import { VirtualList } from "./virtual";

const ROW = 28;
const LANE = 14;
const COLOURS = 5;
/** Number of lanes; all further ones share the last. */
const LANES = 8;

interface Props {
  versions: Version[];
  head: number;
  chosen: number;
  onChoose: (version: number) => void;
  onEnd: () => void;
}

export function Graph({ versions, head, chosen, onChoose, onEnd }: Props) {
  const points = useMemo(() => versions.map(pointOf), [versions]);
  const drawing = useMemo(() => layOut(points), [points]);
  const living = useMemo(() => ancestors(points, head), [points, head]);
  const indent = indentOf(drawing);
  return (
    <VirtualList
      label="Versions"
      rows={versions.length}
      height={ROW}
      chosen={versions.findIndex((each) => each.version === chosen)}
      onEnd={onEnd}
      behind={(first, last) => <Lines drawing={drawing} height={ROW} first={first} last={last} head={head} living={living} />}
      row={(place) => {
        const version = versions[place] as Version;
        return (
          <button
            key={version.version}
            type="button"
            class={`version-row ${living.has(version.version) ? "" : "left"}`}
            aria-current={version.version === chosen ? "true" : undefined}
            style={{ paddingLeft: `${indent}px` }}
            onClick={() => onChoose(version.version)}
            title={titleOf(version)}
          >
            <span class="n">{version.version}</span>
            <span class="cut">{version.step ?? version.kind}</span>
            <span class="marks">
              {version.tags.map((tag) => (
                <span key={tag} class="tag">
                  {tag}
                </span>
              ))}
              {version.pinned && <span class="soft">pinned</span>}
            </span>
          </button>
        );
      }}
    />
  );
}

export function pointOf(version: Version): Point {
  const parents = [version.parent, version.merged].filter((each): each is number => each !== null);
  return { number: version.version, parents };
}

function titleOf(version: Version): string {
  const where = version.address ?? version.step ?? version.kind;
  const marks = [...(version.pinned ? ["pinned"] : []), ...version.tags];
  const said = [version.note, marks.join(", ")].filter(Boolean).map((text) => ` — ${text}`);
  return `version ${version.version} of timeline ${version.timeline}: ${where}${said.join("")}`;
}

/** The width of the lanes. */
export const indentOf = (drawing: Drawing): number => 12 + Math.min(drawing.width, LANES) * LANE;

interface LinesProps {
  drawing: Drawing;
  /** The height of a row. */
  height: number;
  first: number;
  last: number;
  /** The version that is marked. */
  head: number;
  living: Set<number>;
}

export function Lines({ drawing, height, first, last, head, living }: LinesProps) {
  const x = (lane: number) => 12 + Math.min(lane, LANES - 1) * LANE;
  const y = (row: number) => row * height + height / 2;
  const seen = drawing.lines.filter((line) => line.from.row < last && (line.to === null || line.to.row >= first));
  const spots = [...drawing.spots.values()].filter((spot) => spot.row >= first && spot.row < last);
  return (
    <svg class="lanes" width={indentOf(drawing)} height={drawing.spots.size * height} aria-hidden="true">
      {seen.map((line) => {
        const end = line.to ?? { number: 0, row: drawing.spots.size, lane: line.lane };
        const alive = living.has(line.from.number);
        return (
          <path
            key={`${line.from.number} ${end.number}`}
            d={pathOf(x(line.from.lane), y(line.from.row), x(line.lane), x(end.lane), y(end.row), height / 2)}
            fill="none"
            stroke={`var(--lane-${(line.lane % COLOURS) + 1})`}
            stroke-width="2"
            stroke-dasharray={line.to === null ? "2 4" : undefined}
            opacity={alive ? 1 : 0.35}
          />
        );
      })}
      {spots.map((spot) => {
        const colour = `var(--lane-${(spot.lane % COLOURS) + 1})`;
        const isHead = spot.number === head;
        return (
          <circle
            key={spot.number}
            cx={x(spot.lane)}
            cy={y(spot.row)}
            r={isHead ? 5 : 4}
            fill={isHead ? colour : "var(--sheet)"}
            stroke={colour}
            stroke-width="2"
            opacity={living.has(spot.number) ? 1 : 0.35}
          />
        );
      })}
    </svg>
  );
}

/** From a version into the lane of its line, down that lane, and into the lane of the parent. */
function pathOf(fromX: number, fromY: number, laneX: number, toX: number, toY: number, bend: number): string {
  const start = fromX === laneX ? `M${fromX} ${fromY}` : `M${fromX} ${fromY}Q${laneX} ${fromY} ${laneX} ${fromY + bend}`;
  const end = laneX === toX ? `L${toX} ${toY}` : `L${laneX} ${toY - bend}Q${laneX} ${toY} ${toX} ${toY}`;
  return `${start}${end}`;
}
