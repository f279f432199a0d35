// Package wire posts webhooks over HTTP/1.1 and TLS, on connections that it keeps. The
// goroutine that calls [Client.Post] writes the request and reads the answer.
//
// A post costs about 7 us and no allocation. net/http's transport takes 25 us and 54
// allocations: it passes each request to one goroutine that writes and one that reads, and
// makes contexts, maps and readers. Here the head of a request is put together once for its
// [Target], and a post is one look at the connection, one write and one read.
//
// # Connections
//
// Idle connections are used last in, first out. They are closed after 90 seconds, or when
// more than Config.MaxIdle are idle.
//
// # Answers
//
// An answer has at most 64 KB of header, and 64 KB of its body are read. Answers are read
// strictly wherever two readers could disagree about their end. After any doubt about the
// end of an answer the connection is closed.
//
// # Special paths
//
// Each of these is there for one reason:
//
//   - tap.go looks at an idle connection before it is used. Otherwise a request would be
//     lost, and an attempt fail, each time the receiver has closed the connection.
//   - The look does not work on Windows or on connections of a caller's own type, and the
//     receiver may close right after it. So a request on a kept connection that ends
//     without a byte of an answer is made again, once, on a new connection. The receiver
//     may have got both, which at-least-once delivery allows.
//   - The same holds for a request that is answered by 408 or 400 and a close: some
//     receivers send these on an idle connection before they close it.
//   - A request of over 32 KB is written by a goroutine while the answer is read. With one
//     goroutine, a receiver that answers without reading could block both sides for ever.
//   - The close of an idle TLS connection sends close_notify, as RFC 8446 requires, but
//     waits 1 ms at most for a receiver that does not read.
//   - nethttp.go has net/http make the requests to receivers that choose HTTP/2 in the TLS
//     handshake, to hosts in other scripts, through proxies, and of targets that ask for
//     it. So this package has no code for any of these.
//   - A connection that turns out to speak HTTP/2 is handed over to net/http. Otherwise the
//     first delivery after a pause would take two TLS handshakes.
//   - A request of net/http that got a spare connection which had already ended is made
//     again, once, because net/http does not do so itself. Otherwise an attempt would fail
//     for a request that was never sent.
package wire
