// Package esjson writes JSON that an ECMAScript program reads and writes back
// without changing a byte: whatever it gives is a fixed point of
// JSON.stringify(JSON.parse(x)).
//
// Webhook receivers verify a signature over the parsed body stringified again,
// so the body has to be in that form when it is signed. Neither encoding/json
// nor RFC 8785 gives it. The rules, from ECMA-262 (2024) sections 25.5.1,
// 25.5.2 and 10.1.11:
//
//   - no white space;
//   - strings escape the quote, the backslash and control characters, as
//     \b \f \n \r \t or lower-case \u00xx, and lone surrogates, as lower-case
//     \udxxx; everything else stands for itself in UTF-8;
//   - numbers are doubles in their shortest form: 1.0 is 1, 1e21 is 1e+21, -0
//     is 0; what a double cannot hold exactly is rounded, what is over its range
//     is null;
//   - of an object's members those whose key is an array index, "0" to
//     "4294967294" in canonical form, come first and in numeric order, then the
//     others in the order of their first appearance; of members with one key
//     the last value stays; __proto__ is an ordinary key.
//
// Two rules come from outside the standard: invalid UTF-8 becomes U+FFFD, one
// for each maximal subpart, as the WHATWG decoder of a receiver replaces it;
// and nesting over MaxDepth is refused.
//
// All functions may be called concurrently and retain none of their arguments.
package esjson

// MaxDepth is how deeply arrays and objects may be nested: [] is 1 deep.
const MaxDepth = 1000
