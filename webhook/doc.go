// Package webhook delivers events to customers' URLs: each as a signed POST
// with a JSON body, retried for up to four hours, and never lost once it was
// accepted.
//
//	store, err := filequeue.Open("events", filequeue.Config{})
//	...
//	forwarder, err := webhook.New(webhook.Config{
//		Store: store,
//		Destinations: []webhook.Destination{{
//			ID:        "acme",
//			Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}},
//			Secret:    "shared with acme",
//		}},
//	})
//	...
//	go forwarder.Run(ctx)
//	...
//	err = forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Signed Up"})
//
// Forward returns nil once the event is durable in the [Store]; package
// filequeue keeps it in a folder, package memqueue in memory. From then on it
// ends as delivered or as a dead letter.
//
// # Delivery
//
// An attempt posts the body to every endpoint of the destination at once, and
// each has five seconds for a whole answer. The first 2xx from any of them
// makes the event delivered, and the others are not asked again; requests that
// are on their way to them end in their own time, or are cut off where many are
// left over. Timeouts,
// failed connections and names that do not resolve are retried, and so are
// answers of 5xx, 408, 425 and 429, with waits that grow from a second to ten
// minutes and are jittered; a Retry-After is a floor under them for the
// endpoint that sent it. Every other answer, a certificate that does not verify
// and an address that is not public close the endpoint to the event. When all
// are closed, or four hours after the first attempt, or once it has waited for
// its first attempt for four hours in which the destination only failed, the
// event becomes a dead letter, which [Forwarder.Dead] lists and [Forwarder.Replay] sends again.
//
// # Guarantees
//
// At least once: an event that Forward accepted arrives, or becomes a dead
// letter, whatever ends the process. It arrives more than once
//
//   - when the receiver took it and its answer was lost, or came after
//     [Config.Timeout];
//   - when the process is killed, or its store fails to the end, before the
//     outcome of an attempt was stored: that concerns what was in flight, and what
//     waited for one commit; while a backlog drains beside events that have just
//     come, outcomes wait for up to 10 ms longer;
//   - when the context of [Forwarder.Shutdown] ends before the attempts in flight
//     have;
//   - when a connection that was kept ends under a request: that is made again at
//     once, and counted in [Stats.Resent];
//   - at several endpoints of a destination, which are all asked at once;
//   - when the clock of the machine is set forward by more than twelve times
//     Timeout, a minute, while it is in flight;
//   - when it is replayed, or forwarded again after the store has forgotten its
//     ID.
//
// So a dead letter, too, may have been taken by a receiver whose answers were
// lost.
//
// No order: events are attempted concurrently, and one that is retried comes
// after others that were forwarded later. A receiver that keeps a state applies
// an event only if its timestamp is not before that of the one it applied last.
//
// A receiver is idempotent when it inserts the webhook-id, under a unique key, in
// the transaction that does the work, answers 2xx after the commit, and answers
// 2xx without the work where the key is there. It keeps the keys for longer than
// the window, or for ever if dead letters are replayed. Without
// [Destination.StandardSecrets] there is no webhook-id. The messageId serves
// instead where nobody else can choose one that a trusted sender will use. Bodies
// of the type "delete" have none: to delete twice is to delete. The example
// IdempotentReceiver does so.
//
// Times are stored as the clock of the machine says. When it is set back, what
// waits is due later by as much, and what comes then is not kept waiting. When it
// is set forward, windows end earlier by as much, and dead letters are as much
// nearer to [Config.DeadMaxAge].
//
// Each destination has a lane of its own. One that hangs, fails, or has a
// million events waiting takes no slot, memory or time of another, up to
// [Config.MaxInFlight] in all.
//
// One that only fails is probed at intervals. Events that were attempted before
// keep their schedule, whatever waits behind them. Once the destination answers
// all are delivered; those whose window ends before are dead letters.
//
// Requests are signed in X-Signature with [Destination.Secret], and by Standard
// Webhooks with each of [Destination.StandardSecrets], which also says when, so
// that a captured request is soon worthless. Package signature verifies both.
//
// # Observability
//
// [Forwarder.Stats] and [Forwarder.DestinationStats] are for a page, a scrape or
// an alert: what waits and since when, what is in flight, delivered, repeated and
// dead by [Reason], percentiles of latency, and why a destination is held. An
// [Observer] is called for each request. The module webhook/webhookprom makes metrics for
// Prometheus of them, in three lines.
//
// With OpenTelemetry, Attempted starts and ends a span from a.At to a.At+a.Took,
// below the span context in a.Trace, which [Config.Trace] took from the caller's
// context. Log lines have the keys that [Config.Logger] lists.
//
// # Addresses
//
// Certificates are always verified, redirects are not followed, no proxy is used
// but [Config.Proxy], and connections go to public addresses only, unless
// the operator wrote the address or allows it; see [Config.Destinations] and
// [Config.AllowAddresses]. Logs, errors and stored attempts hold no secret, and
// no user, password or query of a URL.
package webhook
