import { useEffect, useState } from "react";
import { useErrorMessage } from "./auth_context.ts";

interface Props {
  label: string;
  /** The question to ask before an action that cannot be undone; without it, the button acts at once. */
  confirm?: string;
  act: () => Promise<unknown>;
  done: () => void;
}

/** A button that sends a request, asks for confirmation where needed, and shows the error when it fails. */
export function Action({ label, confirm, act, done }: Props) {
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const describe = useErrorMessage();
  useEffect(() => {
    if (!asking) return;
    const timer = setTimeout(() => setAsking(false), 5000);
    return () => clearTimeout(timer);
  }, [asking]);
  const click = async () => {
    if (confirm && !asking) return setAsking(true);
    setAsking(false);
    setBusy(true);
    setProblem("");
    try {
      await act();
      done();
    } catch (error) {
      setProblem(describe(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <span className="action">
      <button type="button" className={asking ? "confirm" : undefined} disabled={busy} onClick={() => void click()}>
        {asking ? confirm : label}
      </button>
      {problem && <span role="alert">{problem}</span>}
    </span>
  );
}
