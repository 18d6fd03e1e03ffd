import { useEffect, useState } from "react";
import { useTrouble } from "./door.ts";

interface Props {
  label: string;
  /** What it asks before it does something that cannot be undone; left out: it does it at once. */
  sure?: string;
  act: () => Promise<unknown>;
  done: () => void;
}

/** A button that asks the server for something, and says when it was refused. */
export function Action({ label, sure, act, done }: Props) {
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  const say = useTrouble();
  useEffect(() => {
    if (!asking) return;
    const timer = setTimeout(() => setAsking(false), 5000);
    return () => clearTimeout(timer);
  }, [asking]);
  const click = async () => {
    if (sure && !asking) return setAsking(true);
    setAsking(false);
    setBusy(true);
    setTrouble("");
    try {
      await act();
      done();
    } catch (error) {
      setTrouble(say(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <span className="action">
      <button type="button" className={asking ? "sure" : undefined} disabled={busy} onClick={() => void click()}>
        {asking ? sure : label}
      </button>
      {trouble && <span role="alert">{trouble}</span>}
    </span>
  );
}
