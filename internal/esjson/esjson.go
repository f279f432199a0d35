// Package esjson writes JSON in canonical form: an ECMAScript program reads it and writes it
// back without changing a byte. So its output is a fixed point of JSON.stringify(JSON.parse(x)).
//
// Webhook receivers parse the body, stringify it again and verify the signature of the result.
// So the body must have this form when it is signed. Neither encoding/json nor RFC 8785
// produces it. The rules, from ECMA-262 (2024) sections 25.5.1,
// 25.5.2 and 10.1.11:
//
//   - no white space;
//   - strings escape the quote, the backslash and control characters, as
//     \b \f \n \r \t or lower-case \u00xx, and lone surrogates, as lower-case
//     \udxxx; everything else stands for itself in UTF-8;
//   - numbers are doubles in their shortest form: 1.0 is 1, 1e21 is 1e+21, -0
//     is 0. A number that a double cannot hold exactly is rounded. A number
//     beyond the range of a double is null;
//   - an object's keys that are array indices, "0" to "4294967294" in canonical
//     form, come first and in numeric order. The other keys follow in the order
//     of their first appearance. If a key appears twice, its last value counts.
//     __proto__ is an ordinary key.
//
// Two further rules do not come from ECMA-262. Invalid UTF-8 becomes U+FFFD, one for
// each maximal subpart, as the WHATWG decoder of a receiver replaces it. Nesting deeper
// than MaxDepth is refused.
//
// All functions may be called concurrently and retain none of their arguments.
package esjson

// MaxDepth is how deeply arrays and objects may be nested: [] is 1 deep.
const MaxDepth = 1000
