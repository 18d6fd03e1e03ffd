// Formats durations, times and log text for display.

/** 0.42 s · 12.3 s · 3 m 05 s · 2 h 07 m */
export function duration(seconds: number): string {
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} m`;
}

const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const moment = (milliseconds: number): string => SHORT.format(milliseconds);

/** Removes ANSI escape sequences and normalises line ends. */
export function plainText(text: string): string {
  return text.replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, "").replace(/\r\n?/g, "\n");
}

/** The text of a log chunk. A chunk of stdout or stderr may end within a line; chunks of `log` are whole lines. */
export function shownPiece({ data, source }: { data: string; source: string }, next: string): string {
  const text = plainText(data);
  const goesOn = source !== "log" && next === source;
  return text.endsWith("\n") || goesOn ? text : `${text}\n`;
}
