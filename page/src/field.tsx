// A field whose text counts when it is finished (Enter, or leaving it): what is typed survives being drawn anew meanwhile.

import { useState } from "preact/hooks";

interface Props {
  label: string;
  value: string;
  onFinish: (value: string) => void;
  id?: string;
  placeholder?: string;
}

export function Field({ label, value, onFinish, id, placeholder }: Props) {
  const [typed, setTyped] = useState<string | null>(null);
  return (
    <input
      id={id}
      type="text"
      aria-label={label}
      placeholder={placeholder}
      title={value}
      value={typed ?? value}
      onInput={(event) => setTyped(event.currentTarget.value)}
      onChange={(event) => {
        setTyped(null);
        onFinish(event.currentTarget.value.trim());
      }}
      onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
    />
  );
}
