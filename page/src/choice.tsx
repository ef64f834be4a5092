// A choice among names, one of which stands for none.

interface Props {
  label: string;
  /** The label for no choice. */
  all: string;
  value: string;
  /** Values, or pairs of a value and its label. */
  options: (string | readonly [string, string])[];
  onChoose: (value: string) => void;
}

export function Choice({ label, all, value, options, onChoose }: Props) {
  if (options.length === 0) return null;
  return (
    <select aria-label={label} value={value} onChange={(event) => onChoose(event.currentTarget.value)}>
      <option value="">{all}</option>
      {options.map((option) => {
        const [name, text] = typeof option === "string" ? [option, option] : option;
        return (
          <option key={name} value={name}>
            {text}
          </option>
        );
      })}
    </select>
  );
}

/** Each name once, sorted. */
export const distinct = (names: string[]): string[] => [...new Set(names)].sort();
