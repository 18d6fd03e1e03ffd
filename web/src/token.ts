// The access token of this tab, in session storage: it is deleted with the tab, other origins cannot read it, and it is
// in no URL.

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
