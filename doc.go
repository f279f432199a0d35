// Package analytics sends what the users of a program do to a collector that
// speaks the HTTP tracking API, such as the one in this module:
//
//	client := analytics.New(os.Getenv("WRITE_KEY"))
//	defer client.Close()
//
//	err := client.Track(&analytics.Track{
//		UserId:     "u-2041",
//		Event:      "Order Completed",
//		Properties: map[string]any{"total": 39.95},
//	})
//
// [New] makes a [Client]; its methods [Client.Identify], [Client.Track],
// [Client.Page], [Client.Screen], [Client.Group] and [Client.Alias] queue a
// message and return; batches go out in the background.
//
// # What a call costs and promises
//
// A call encodes its message, copies it into the batch that is being filled, and returns.
// It does not wait for the network, and in the steady state it does not allocate. After the
// call the caller may change the message and its maps.
//
// If the call returned nil, the message is accepted. It ends as delivered, or as dropped for
// one of the reasons listed under [Reason]. [Client.Stats], the callback OnDelivery and the
// log tell which. Messages in memory are lost if the process dies, unless SpoolDir names a
// folder that keeps them.
//
// # Limits
//
// Sizes are in bytes of JSON as it is sent, before compression; 1 KB is 1,024
// bytes. What happens at each bound:
//
//   - A call has at most 32 KB, [MaxCallSize]. A larger one is a *[SizeError] of
//     that call.
//   - A batch has at most 500 KB, [MaxBatchSize], and 2,500 calls,
//     [MaxBatchCalls]. Further messages go into the next batch.
//   - Messages in memory, those under way and in back-off included, have at
//     most MaxMemory, 64 MB by default. Beyond it a call returns [ErrQueueFull]
//     at once, and [Client.Enqueue] waits. With SpoolDir the oldest messages move to
//     the disk long before.
//   - Files in SpoolDir have at most SpoolMax, 1 GB by default. Beyond it a call returns
//     [ErrQueueFull], too. While the disk is full, messages are held in memory alone.
//   - Four batches are under way at once, and the next one grows meanwhile.
//   - An attempt takes at most Timeout, 10 seconds by default, from dialing to the end of
//     the answer. At most 1 MB of an answer is read.
//   - A batch has eleven attempts. Then it is dropped, or stays in SpoolDir.
//   - Close takes at most 30 seconds, Shutdown and Flush as long as their context lets
//     them. Their *[UndeliveredError] counts the messages that are left.
//
// # Errors
//
// A call returns one of these errors, and then has queued nothing: a *[FieldError] that
// names the field, or the path of the value, which cannot be sent; a *[SizeError];
// [ErrQueueFull]; [ErrNotSpooled]; [ErrClosed]; or a *[ConfigError] that names the setting
// with which no call can work. A message that is dropped later has a [Reason].
//
// # Values
//
// Maps may hold whatever encoding/json can encode; other values are an error that
// names their path. Messages travel in the form ECMAScript's JSON.stringify
// gives, so an integer beyond 2^53 is rounded as it would be there:
// ids belong in strings. NaN and infinities are refused.
//
// # When the collector fails
//
// Network errors, timeouts and the statuses 408, 410, 429, 460 and 5xx other
// than 501 and 505 are retried ten times with growing random waits, up to a
// minute each. A Retry-After header, or a 429, pauses the whole client, for 300
// seconds at most; a batch waits for the end of both. Success is 2xx;
// everything else is final.
//
// # Outages and crashes
//
// With SpoolDir set, every message is in a file when its call returns. So kill -9 loses no
// accepted message, and an outage of the collector loses none below SpoolMax bytes. The
// client sends them when the collector is back, or the next process on the same folder sends
// them from its first call on; a process that has nothing to track calls [Client.Flush]. A
// loss of power may cost the messages that the operating system has not written yet, about
// 30 seconds on Linux. SpoolSync shortens this time, to zero with [SyncEachCall].
//
// # Analytics off
//
// In development, and in tests that look at other things, a client with the
// transport of package analyticstest that discards everything checks, encodes
// and counts calls as ever, and sends nothing:
//
//	if os.Getenv("ANALYTICS") == "off" {
//		client.Transport = analyticstest.Discard{}
//	}
//
// The code that tracks stays as it is. Tests that look at what is tracked have
// analyticstest.New, a collector in the process.
//
// # Before the program ends
//
// Call [Client.Close], or [Client.Shutdown] with a deadline of your own: they
// deliver what is queued and report how many messages were left. [Client.Flush]
// does the same for a client that goes on.
package analytics
