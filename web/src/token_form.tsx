import { type FormEvent, useLayoutEffect, useRef } from "react";

interface Props {
  refused: boolean;
  onToken: (token: string) => void;
}

/** Asks for an access token, which stays in this tab and is sent as a header. */
export function TokenForm({ refused, onToken }: Props) {
  const field = useRef<HTMLInputElement>(null);
  // A layout effect, so that the field has the focus before the first paint and no keystroke is lost.
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const value = field.current?.value.trim();
    if (value) onToken(value);
  };
  return (
    <main className="narrow">
      <h1>Enter an access token</h1>
      <p>
        This server requires a token with the role <code>submit</code> or <code>admin</code>. Create one on the server:
      </p>
      <pre className="command">backstay token create --role submit</pre>
      {refused && <p role="alert">This token is unknown, has expired or was revoked.</p>}
      <form onSubmit={submit} className="token">
        <label htmlFor="token">Token</label>
        <input id="token" ref={field} type="password" autoComplete="off" spellCheck={false} placeholder="bst_…" />
        <button type="submit">Continue</button>
      </form>
    </main>
  );
}
