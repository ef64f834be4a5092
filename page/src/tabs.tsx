// Tabs, with arrow keys.

interface Props {
  label: string;
  /** Name in the URL, label, and whether it can be chosen. */
  tabs: { name: string; label: string; disabled?: boolean }[];
  chosen: string;
  onChoose: (name: string) => void;
  class?: string;
}

export function Tabs({ label, tabs, chosen, onChoose, class: more = "" }: Props) {
  const moved = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    const open = tabs.filter((each) => !each.disabled);
    const next = open[(open.findIndex((each) => each.name === chosen) + by + open.length) % open.length];
    if (!next) return;
    event.preventDefault();
    onChoose(next.name);
    const row = event.currentTarget as HTMLElement;
    row.querySelectorAll("button")[tabs.indexOf(next)]?.focus();
  };
  return (
    <div class={`tabs ${more}`} role="tablist" aria-label={label} onKeyDown={moved}>
      {tabs.map((each) => (
        <button
          key={each.name}
          type="button"
          role="tab"
          aria-selected={each.name === chosen ? "true" : "false"}
          tabIndex={each.name === chosen ? 0 : -1}
          disabled={each.disabled ?? false}
          onClick={() => onChoose(each.name)}
        >
          {each.label}
        </button>
      ))}
    </div>
  );
}
