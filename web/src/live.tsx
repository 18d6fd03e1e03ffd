/** Whether what is shown is what is. */
export function Live({ live, over = false }: { live: boolean; over?: boolean }) {
  if (over) return null;
  return (
    <span className={live ? "live on" : "live off"} title={live ? "Changes are shown as they happen" : "Trying again"}>
      <span className="dot" aria-hidden="true" />
      {live ? "live" : "not connected"}
    </span>
  );
}
