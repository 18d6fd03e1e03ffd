// Which page is shown: that of the address, or the question for a token while the server wants one.

import { useCallback, useEffect, useState } from "react";
import { Door } from "./door.ts";
import { useRoute } from "./route.ts";
import { RunPage } from "./run_page.tsx";
import { RunsPage } from "./runs_page.tsx";
import { keepToken, token } from "./token.ts";
import { TokenForm } from "./token_form.tsx";

export function App() {
  const route = useRoute();
  const [shut, setShut] = useState<"" | "wanted" | "refused">("");
  // Counts entries, so that pages begin anew with another token.
  const [entry, setEntry] = useState(0);
  const shutDoor = useCallback(() => setShut(token() ? "refused" : "wanted"), []);
  const enter = (value: string) => {
    keepToken(value);
    setShut("");
    setEntry((count) => count + 1);
  };
  useEffect(() => {
    document.title = route.run ? `${route.run.slice(-8)} · Backstay` : "Runs · Backstay";
  }, [route.run]);

  return (
    <Door.Provider value={shutDoor}>
      <header className="top">
        <a href="#/" className="brand">
          Backstay
        </a>
        <nav aria-label="Pages">
          <a href="#/" aria-current={route.run ? undefined : "page"}>
            Runs
          </a>
        </nav>
        {token() && !shut && (
          <button type="button" className="quiet" onClick={() => enter("")}>
            Forget token
          </button>
        )}
      </header>
      {shut ? (
        <TokenForm refused={shut === "refused"} onToken={enter} />
      ) : route.run ? (
        <RunPage key={`${entry} ${route.run}`} id={route.run} job={route.job} />
      ) : (
        <RunsPage key={entry} />
      )}
    </Door.Provider>
  );
}
