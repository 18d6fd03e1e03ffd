interface Props {
  title: string;
  values: Record<string, unknown>;
  /** Collapsed until the user opens it. */
  fold?: boolean;
}

const text = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** A list of names and values; renders nothing when it is empty. */
export function Values({ title, values, fold = false }: Props) {
  const names = Object.keys(values);
  if (!names.length) return null;
  const list = (
    <dl className="values">
      {names.map((name) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <code>{text(values[name])}</code>
          </dd>
        </div>
      ))}
    </dl>
  );
  if (fold) {
    return (
      <details>
        <summary>
          {title} ({names.length})
        </summary>
        {list}
      </details>
    );
  }
  return (
    <section>
      <h3>{title}</h3>
      {list}
    </section>
  );
}
