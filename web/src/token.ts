// The token of this tab. Session storage: it ends with the tab, no other site reads it, and it is in no URL.

const KEY = "backstay.token";

let current: string | null = null;

export function token(): string {
  current ??= sessionStorage.getItem(KEY) ?? "";
  return current;
}

export function keepToken(value: string): void {
  current = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}
