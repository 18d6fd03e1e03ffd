/** The connection indicator; hidden once the run is over. */
export function Live({ live, over = false }: { live: boolean; over?: boolean }) {
  if (over) return null;
  return (
    <span className={live ? "live on" : "live off"} title={live ? "Changes appear as they happen" : "Reconnecting"}>
      <span className="dot" aria-hidden="true" />
      {live ? "live" : "disconnected"}
    </span>
  );
}
