// Troubles, sorted: a request without a token that counts shuts the door for the whole page, all else is said in place.

import { createContext, useCallback, useContext } from "react";
import { Refusal } from "./api.ts";

export const Door = createContext<() => void>(() => undefined);

/** What to say about an error; "": nothing here. */
export function useTrouble(): (error: unknown) => string {
  const shut = useContext(Door);
  return useCallback(
    (error: unknown) => {
      if (error instanceof DOMException && error.name === "AbortError") return "";
      if (error instanceof Refusal && error.status === 401) {
        shut();
        return "";
      }
      if (error instanceof Refusal) return error.message;
      return "The server does not answer. This page tries again.";
    },
    [shut],
  );
}
