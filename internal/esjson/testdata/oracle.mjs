// Reads JSON texts, one a line in base64, and writes for each what an
// ECMAScript receiver makes of it: the base64 of JSON.stringify(JSON.parse(x))
// and its HMAC-SHA1 under the key given as argument, or "error".
import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';

const key = process.argv[2];
const lines = readFileSync(0, 'latin1').split('\n');
lines.pop();
const out = lines.map((line) => {
  let value;
  try {
    value = JSON.parse(Buffer.from(line, 'base64').toString('utf8'));
  } catch {
    return 'error';
  }
  const text = JSON.stringify(value);
  const mac = createHmac('sha1', key).update(text).digest('hex');
  return `${Buffer.from(text).toString('base64')} ${mac}`;
});
process.stdout.write(out.map((line) => line + '\n').join(''));
