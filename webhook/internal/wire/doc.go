// Package wire posts webhooks over HTTP/1.1 and TLS, on connections that it keeps. The
// goroutine that calls [Client.Post] writes the request and reads the answer.
//
// A post costs about 7 us and no allocation. net/http's transport takes 25 us and 54
// allocations: it passes each request to one goroutine that writes and one that reads, and
// makes contexts, maps and readers. Here the head of a request is built once for each
// [Target]. A post is then one look at the connection, one write and one read.
//
// # Connections
//
// The connection that was released last is used first. Idle connections are closed after 90
// seconds, or when more than Config.MaxIdle are idle.
//
// # Answers
//
// An answer may have at most 64 KB of header, and at most 64 KB of its body are read. The
// package refuses an answer if two HTTP readers could disagree about where it ends. If there
// is any doubt about the end of an answer, the connection is closed.
//
// # Special paths
//
// Each special path has one reason:
//
//   - tap.go looks at an idle connection before it is used. Otherwise a request would be
//     lost, and an attempt would fail, each time the receiver has closed the connection.
//   - The look does not work on Windows or on connections of a caller's own type, and the
//     receiver may close right after it. So if a kept connection ends without a byte of an
//     answer, the request is made again, once, on a new connection. The receiver may have
//     got both requests, which at-least-once delivery allows.
//   - The same happens if the answer is a 408 or 400 that closes the connection, because
//     some receivers send these on an idle connection before they close it.
//   - A request of over 32 KB is written by a goroutine while the answer is read. With a single
//     goroutine, a receiver that answers without reading could block both sides for ever.
//   - The close of an idle TLS connection sends close_notify, as RFC 8446 requires. It waits
//     at most 1 ms for a receiver that does not read.
//   - nethttp.go makes requests with net/http for receivers that choose HTTP/2 in the TLS
//     handshake, for hosts with names in other scripts, for proxies, and for targets with
//     NetHTTP. So this package needs no code of its own for any of these.
//   - A connection that turns out to speak HTTP/2 is handed over to net/http. Otherwise the
//     first delivery after a pause would take two TLS handshakes.
//   - net/http may give a request a spare connection that has already ended, and does not
//     repeat the request. So this package repeats it, once. Otherwise an attempt would fail
//     for a request that was never sent.
package wire
