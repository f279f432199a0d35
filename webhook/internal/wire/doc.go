// Package wire posts webhooks over HTTP/1.1 and TLS, on connections that it keeps. The
// goroutine that calls [Client.Post] writes the request and reads the answer.
//
// A post costs about 7 us and no allocation: the head of a request is built once for each [Target],
// and a post is one look at the connection, one write and one read. net/http's transport takes 25
// us and 54 allocations: it passes each request to one goroutine that writes and one that reads.
//
// # Connections
//
// The connection that was released last is used first. Idle connections are closed after 90
// seconds, or when more than Config.MaxIdle are idle. Once a status line and a whole header have
// come, the status decides, even if the header or the framing of the body is wrong: the receiver has
// had the request. Up to 256 KB of header are read, 64 KB of it are used, and at most 64 KB of the
// body are read. If there is any doubt where the answer ends, the connection is closed.
//
// # Special paths
//
// Each special path has one reason:
//
//   - peek.go looks at an idle connection before it is used. Otherwise an attempt would fail each
//     time the receiver has closed the connection.
//   - That look does not work on Windows or on connections of a caller's own type, and the receiver
//     may close the connection right after the look. So if a kept connection ends without a byte of
//     an answer, or with a 408 or 400 that closes it, the Client makes the request again, once, on
//     a new connection. The receiver may have got both requests, which at-least-once delivery
//     allows. With HTTP/2 it does so only if the receiver says that it has not processed the request.
//   - On a plain socket the look and the write are part of the read of the answer; see
//     probe.turnAround. That saves a read that finds nothing, 2 us of the 28 us of a delivery from a
//     store in memory.
//   - A request of over 32 KB is written by a goroutine while the answer is read; see maxInline.
//   - The close of an idle TLS connection sends close_notify, as RFC 8446 requires. It does
//     not wait for a receiver that does not read, except for 1 ms on Windows.
//   - nethttp.go makes requests with net/http for receivers that choose HTTP/2 in the TLS
//     handshake, for proxies, and for targets with NetHTTP. So this package needs no code of its own
//     for any of these. A connection that turns out to speak HTTP/2 is handed over to net/http:
//     otherwise a delivery would take two TLS handshakes. The Client keeps the connections of
//     net/http itself, because http.Transport repeats a request for each GOAWAY, without bound. Below
//     HTTP/1.1 of net/http a filter reads the heads of answers as this package does. It does not see
//     them behind TLS through a proxy: there net/http refuses flawed ones.
package wire
