// Package analytics records what the users of a program do. It sends each record, a message, to a
// collector that speaks the HTTP tracking API, such as the collector in this module:
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
// [New] makes a [Client]. Its methods [Client.Identify], [Client.Track], [Client.Page],
// [Client.Screen], [Client.Group] and [Client.Alias] queue a message and return. The client sends
// the messages in batches, in the background.
//
// # What a call costs and promises
//
// A call encodes its message, copies it into the batch that is being filled, and returns. It does
// not wait for the network, and usually it does not allocate. After the call the caller may change
// the message and its maps.
//
// If the call returned nil, the message is accepted. It is later either delivered, or dropped for
// one of the reasons listed under [Reason]. [Client.Stats], the callback OnDelivery and the log
// report the outcome. Without a Logger, warnings go to slog.Default, at most one a minute for each
// kind of trouble. If the process dies, messages in memory are lost. To keep them, set
// SpoolDir to a folder.
//
// # Limits
//
// Sizes are in bytes of JSON as sent, before compression; 1 KB is 1,024 bytes. This is what happens
// at each bound:
//
//   - A call may have 32 KB, [MaxCallSize]. For a larger call the method returns a *[SizeError].
//   - A batch may have 500 KB, [MaxBatchSize], and 2,500 calls, [MaxBatchCalls]. Further messages
//     go into the next batch.
//   - Messages in memory may have MaxMemory bytes, 64 MB by default. This includes messages that
//     are under way and in back-off. Beyond it a call returns [ErrQueueFull] at once, and
//     [Client.Enqueue] waits. With SpoolDir, waiting messages move to the disk long before that.
//   - Files in SpoolDir may have SpoolMax bytes, 1 GB by default. Beyond it a call returns
//     [ErrQueueFull], too. While the disk is full, messages are held in memory alone.
//   - Four batches may be under way at once. Meanwhile the next batch grows.
//   - An attempt may take Timeout, 10 seconds by default, from dialing to the end of the answer. At
//     most 1 MB of an answer is read.
//   - A batch gets eleven attempts. Then it is dropped, or stays in SpoolDir.
//   - Close waits at most 30 seconds for deliveries. Shutdown and Flush wait at most until their
//     context ends. If messages are left, the error is an *[UndeliveredError] that counts them.
//
// # Errors
//
// A call that fails has queued nothing. Its error is a *[FieldError] that names the invalid field
// or the path of the invalid value; a *[SizeError]; [ErrQueueFull]; an error that wraps
// [ErrNotSpooled]; [ErrClosed]; or a *[ConfigError] that names a wrong setting, with which all
// calls fail. If a message is dropped later, the drop has a [Reason].
//
// # Values
//
// Maps may hold any value that encoding/json can encode. For other values the error names their
// path. Messages are sent in the form that ECMAScript's JSON.stringify writes. So an integer beyond
// 2^53 is rounded, as ECMAScript would do: use strings for ids. NaN and infinities are refused.
//
// # When the collector fails
//
// The client retries after network errors, timeouts and the statuses 408, 410, 429, 460 and 5xx
// other than 501 and 505. It retries ten times, after random waits that grow up to a minute each. A
// Retry-After header or a 429 also pauses the whole client, for at most 300 seconds. A retry waits
// for both its own wait and the pause. Any 2xx status is a success, and all other statuses are
// final failures. With SpoolDir, messages refused with 3xx, 401, 403, 404, 405 or 407 are sent
// again later, as after an outage. A 413 for a batch, which proxies answer, divides the batch: only
// a call that is too large alone is dropped.
//
// # Outages and crashes
//
// With SpoolDir set, every message is in a file when its call returns, unless the disk is full or
// somebody has just deleted the folder; see there. Otherwise kill -9 loses no accepted message. An outage of the collector loses none either, up to SpoolMax
// bytes. The client sends the stored messages when the collector is back. If the process ends
// before that, the next process on the same folder sends them, starting at its first call. A
// process that has no calls to make can call [Client.Flush]. A loss of power may cost the messages
// that the operating system has not yet written to the disk: on Linux, those of the last 30 seconds
// or so. SpoolSync shortens this time, to zero with [SyncEachCall].
//
// # Analytics off
//
// In development, and in tests of other things, give the client a transport that discards
// everything. The client then checks, encodes and counts calls as usual, but sends nothing:
//
//	if os.Getenv("ANALYTICS") == "off" {
//		client.Transport = analyticstest.Discard{}
//	}
//
// The code that makes calls does not change. To test the calls themselves, use analyticstest.New,
// which runs a collector in the process.
//
// # Before the program ends
//
// Call [Client.Close], or [Client.Shutdown] with a deadline of your own. They deliver the queued
// messages and report how many are left. [Client.Flush] does the same for a client that is still in
// use.
package analytics
