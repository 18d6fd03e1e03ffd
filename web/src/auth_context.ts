// Error handling of requests: a 401 replaces the whole page with the token form, other errors are shown in place.

import { createContext, useCallback, useContext } from "react";
import { Refusal } from "./api.ts";

export const AuthContext = createContext<() => void>(() => undefined);

/** Returns a function that maps an error to the message to show; "" for none. */
export function useErrorMessage(): (error: unknown) => string {
  const requireToken = useContext(AuthContext);
  return useCallback(
    (error: unknown) => {
      if (error instanceof DOMException && error.name === "AbortError") return "";
      if (error instanceof Refusal && error.status === 401) {
        requireToken();
        return "";
      }
      if (error instanceof Refusal) return error.message;
      return "The server does not respond. Retrying…";
    },
    [requireToken],
  );
}
