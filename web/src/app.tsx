// The application: shows the page of the current address, or the token form while the server requires a token.

import { useCallback, useEffect, useState } from "react";
import { AuthContext } from "./auth_context.ts";
import { useRoute } from "./route.ts";
import { RunPage } from "./run_page.tsx";
import { RunsPage } from "./runs_page.tsx";
import { keepToken, token } from "./token.ts";
import { TokenForm } from "./token_form.tsx";

export function App() {
  const route = useRoute();
  const [tokenState, setTokenState] = useState<"" | "wanted" | "refused">("");
  // Part of the pages' keys: a new token remounts them.
  const [entry, setEntry] = useState(0);
  const requireToken = useCallback(() => setTokenState(token() ? "refused" : "wanted"), []);
  const enter = (value: string) => {
    keepToken(value);
    setTokenState("");
    setEntry((count) => count + 1);
  };
  useEffect(() => {
    document.title = route.run ? `${route.run.slice(-8)} · Backstay` : "Runs · Backstay";
  }, [route.run]);

  return (
    <AuthContext.Provider value={requireToken}>
      <header className="top">
        <a href="#/" className="brand">
          Backstay
        </a>
        <nav aria-label="Pages">
          <a href="#/" aria-current={route.run ? undefined : "page"}>
            Runs
          </a>
        </nav>
        {token() && !tokenState && (
          <button type="button" className="quiet" onClick={() => enter("")}>
            Forget token
          </button>
        )}
      </header>
      {tokenState ? (
        <TokenForm refused={tokenState === "refused"} onToken={enter} />
      ) : route.run ? (
        <RunPage key={`${entry} ${route.run}`} id={route.run} job={route.job} />
      ) : (
        <RunsPage key={entry} />
      )}
    </AuthContext.Provider>
  );
}
