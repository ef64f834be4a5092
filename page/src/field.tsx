// A field that commits its text on Enter or blur; unfinished text survives a render.

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
