// The session: the role of this browser. Buttons that its role may not use are hidden.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

export interface Session {
  role: "viewer" | "operator" | "admin";
  read_only: boolean;
  store: string;
  workflows: string[];
}

const RANK = { viewer: 1, operator: 2, admin: 3 };

export const SessionContext = createContext<Session | null>(null);

/** Whether this browser has a role. */
export function useMay(role: Session["role"]): boolean {
  const session = useContext(SessionContext);
  return session !== null && RANK[session.role] >= RANK[role] && (role === "viewer" || !session.read_only);
}
