// Package webhook delivers events to customers' URLs: each as a signed POST with a JSON body,
// retried for up to four hours, and never lost once it was accepted.
//
//	store, err := filequeue.Open("webhooks", filequeue.Config{})
//	acme := webhook.Destination{
//		ID:        "acme",
//		Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}},
//		Secret:    "shared with acme",
//	}
//	forwarder, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{acme}})
//	go forwarder.Run(ctx) // until Shutdown
//	err = forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Signed Up"})
//	err = forwarder.Shutdown(ctx)
//
// Forward returns nil once the event is durable in the [Store]: package filequeue keeps it in a
// folder, package memqueue in memory. From then on it is delivered, or becomes a dead letter.
//
// A [Directory] finds customers that come and go. [Forwarder.ForwardTx] forwards an event if, and
// only if, a transaction of your database commits. [Forwarder.List] lists deliveries, and
// [Forwarder.RetryAll] sends them again. Package webhooktest has receivers for your tests.
//
// # Delivery
//
// An attempt posts the body to every endpoint of the destination at once, and each has five seconds
// for a whole answer. The first 2xx from any of them delivers the event, and the others get no
// further request.
//
// Timeouts, failed connections, names that do not resolve, and answers of 5xx, 408, 425 and 429 are
// retried, at the times of the [Schedule], but not before a Retry-After of the endpoint. Any other
// answer, a certificate that does not verify, or an address that is not public closes the endpoint
// to the event: it gets no further request for it.
//
// The event becomes a dead letter when all endpoints are closed to it, or four hours after its
// first attempt. [Retries] allows longer attempts and retries over days, and retries more answers,
// as Standard Webhooks recommends. A destination that only fails is probed, and new events wait for
// their first attempt, for up to four hours; see [Config.MaxConcurrent]. A destination that hangs,
// fails, or has a million events waiting does not hold up another.
//
// # Guarantees
//
// At least once: an event that Forward accepted arrives, or becomes a dead letter, whatever ends
// the process. It arrives more than once
//
//   - when the receiver took it and its answer was lost, or came after [Config.Timeout];
//   - when the process is killed, or its store fails for good, before the outcome of an attempt was
//     stored. Outcomes wait for the commit before them, and for 1 ms longer under load;
//   - when the context of [Forwarder.Shutdown] ends before the attempts in flight end;
//   - when the receiver closes a kept connection while a request is sent on it; see [Stats.Resent];
//   - at several endpoints of a destination, which all get a request at once;
//   - when the clock of the machine is set forward by more than twelve times [Config.Timeout] while
//     the event is in flight;
//   - when it is replayed, or forwarded again after the store has forgotten its ID.
//
// So a receiver may have taken even an event that became a dead letter.
//
// Order only by key: with event.Custom.Key, [Destination.Order] or their like, the deliveries of a
// destination with one Key are attempted one after the other. All others are attempted concurrently,
// and a retried event may arrive after later ones. A receiver that keeps a state should ignore an
// event with an earlier timestamp than the event that it applied last.
//
// An idempotent receiver inserts the webhook-id, under a unique key, in the transaction that does
// the work; see the example IdempotentReceiver. It keeps the keys for longer than the retry window,
// or for ever if dead letters are replayed. Without [Destination.StandardSecrets] the messageId takes
// the place of the webhook-id, unless an untrusted sender can use the messageId of a trusted one.
// Bodies of the type "delete" have no messageId, but deleting twice does no harm.
//
// Times are stored by the clock of the machine. When it is set back by a minute or more while Run
// runs, all waiting deliveries are due at once. If it is set back between two runs, by less than
// [Config.Window], retries are due later by as much. When it is set forward, retry windows end earlier by as much,
// and dead letters reach [Config.DeadMaxAge] earlier.
//
// # Observability
//
// [Forwarder.Stats] and [Forwarder.DestinationStats] are for a page or an alert, and the module
// webhook/webhookprom makes Prometheus metrics of them. An [Observer] is called for each request.
// The module webhook/webhookotel makes OpenTelemetry spans, whose parent is the span in the context of
// Forward, and every attempt sends that span. Without OpenTelemetry, event.ContextWithTrace takes
// the headers of the span.
//
// # Security
//
// Requests are signed with [Destination.Secret], and by Standard Webhooks with each of
// [Destination.StandardSecrets]. The latter signs the time, too, so that a captured request is soon
// worthless. Package signature verifies both.
//
// Certificates are always verified. Redirects are not followed. No proxy is used but
// [Config.Proxy]. Connections go to public addresses only, unless the operator wrote the address or
// allows it; see [Config.Destinations] and [Config.AllowAddresses]. Logs, errors and stored
// attempts hold no secret, and no user, password or query of a URL.
package webhook
