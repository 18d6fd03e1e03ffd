import { type FormEvent, useLayoutEffect, useRef } from "react";

interface Props {
  refused: boolean;
  onToken: (token: string) => void;
}

/** Asks for a token. It stays in this tab and is sent as a header. */
export function TokenForm({ refused, onToken }: Props) {
  const field = useRef<HTMLInputElement>(null);
  // At once with what is shown, not after it: whoever types then is heard.
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const value = field.current?.value.trim();
    if (value) onToken(value);
  };
  return (
    <main className="narrow">
      <h1>A token, please</h1>
      <p>
        This server wants one with the role <code>submit</code> or <code>admin</code>. Make it where the server runs:
      </p>
      <pre className="command">backstay token create --role submit</pre>
      {refused && <p role="alert">The server does not know this token, or it has expired.</p>}
      <form onSubmit={submit} className="token">
        <label htmlFor="token">Token</label>
        <input id="token" ref={field} type="password" autoComplete="off" spellCheck={false} placeholder="bst_…" />
        <button type="submit">Enter</button>
      </form>
    </main>
  );
}
