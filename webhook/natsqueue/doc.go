// Package natsqueue keeps deliveries in NATS JetStream. It is a store.Store that any number of
// nodes share, and each node adds throughput. The servers must have version 2.12.1 or newer. If a
// node dies, nothing is lost: the other nodes take over its partitions once Config.Claim has passed
// since its last heartbeat.
//
//	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1), nats.PingInterval(5*time.Second),
//		nats.FlusherTimeout(3*time.Second))
//	...
//	store, err := natsqueue.Open(ctx, nc, natsqueue.Config{})
//	...
//	f, err := webhook.New(webhook.Config{Store: store, ...})
//
// The user of the connection has to be allowed to publish to $JS.API.>, $JS.FC.>, S.>, S_ASK.>
// and _INBOX.>, and to subscribe to S_ASK.> and _INBOX.>, where S is the name of the stream. If the user may not
// create streams, or if the account wants them of a certain size or place, create the stream
// beforehand, with any subjects: Open configures a stream that has no messages. It refuses limits that
// could lose or stop deliveries, such as max_age, max_msgs and max_msg_size. If JetStream or a
// permission is missing, Open returns at once with an error that says so.
//
// # What it promises
//
// Put and Settle return once the server has acknowledged what they store. The server's
// configuration decides whether acknowledged data survives a power failure. By default JetStream
// acknowledges a write once the operating system has it, and syncs its files only every two minutes
// (sync_interval). If a process of the server is killed, nothing is lost. If its machine loses
// power, up to two minutes of acknowledged data are lost. To prevent that, use one of these:
//
//   - Three replicas (Config.Replicas) on machines that do not fail together. Acknowledged data is
//     on at least two of them.
//   - sync_interval: always in the server's jetstream block. The server then syncs each write
//     before it acknowledges it, and writes become slower.
//
// A client cannot read a server's sync_interval. So Open logs a warning when the stream has no
// replicas.
//
// A Put is stored as a whole or not at all. If the connection has the options above, each call gets
// its answer or an error within five seconds, whatever the server does. Calls that read or change
// much, such as List, Hasten and Erase, make several requests, each with an answer in that time.
//
// While a node stores heartbeats, no other node claims the deliveries of its partitions. A node
// without heartbeats for Config.Claim loses its partitions to other nodes, which may repeat the
// attempts that it was making. If the leader of the stream is gone too, the servers elect another
// one first, which takes 4 to 10 seconds. While the servers are away, no node is considered dead.
// Afterwards the nodes wait another Config.Claim for each other, and a node that is back in time
// keeps its partitions. If a node has lost a partition without knowing it, the server refuses its
// records of the partition.
//
// If a message or a delivery cannot be read, because it is damaged or of a later version, the owner
// logs that. The cleaner copies it to the subject n.damaged, where people can look at it. All other
// deliveries go on. They also go on if the servers have lost a message.
//
// When a server has no room left (MaxBytes, max_file_store, or the limit of the account), Put
// returns store.ErrQueueFull. The waiting deliveries go on: the store deletes a reserve of 512 KB
// in the stream to make room for the records of their outcomes. A server whose disk is full to the
// last byte stops JetStream until it is restarted. With three replicas the other two go on.
//
// If max_payload is lowered below a waiting delivery, the delivery stays where it is, and the owner
// logs that. Its attempts are in the memory of the owner alone, so the next owner attempts it as if
// it were new. It becomes a dead letter only after max_payload is raised again. All others go on, but
// the log of their partition cannot be purged beyond it.
//
// If somebody deletes the stream, the next heartbeat creates it again. The deliveries in it are
// lost.
//
// Due times are compared with the clock of the node that owns the destination. The age of
// heartbeats is measured by the servers' clocks. Both clocks have to be right to about a second, as
// NTP keeps them.
//
// # What it does not promise
//
//   - Put reports a delivery as a duplicate only if the owner answers within a quarter of a second
//     after the delivery is stored. While a partition has no owner, Put reports all deliveries as
//     stored. The next owner leaves the duplicates out. The same holds for Behind.
//   - There is no History. A delivered delivery leaves the stream with its message, and a history
//     would have to store it a second time. Set webhook.Config.Observers to keep a history
//     elsewhere.
//   - Erase finds waiting deliveries and dead letters. Their bytes leave the stream once the
//     cleaner has moved the deliveries that wait before them in the same partition: within a second,
//     or later if many wait before them. Older messages may still have deliveries of the user that
//     have been delivered or retried. They stay until the cleaner purges these messages. The bytes of
//     a removed message stay in the files of the server until it writes these files anew.
//
// # What a list costs
//
// The owner of a partition has the order of its deliveries in memory, dead letters included. So a page
// costs one question to the owner of each partition that the query is about, one if that is a single
// destination, and a second question to the owners of the deliveries of the page. Only the deliveries
// of the page are read, a dead letter with its message, and a waiting one with up to 128 KB that were
// put with it, unless it is in memory. A query for destinations, states or a user reads only what it
// selects. Any other reads what it looks at, up to store.MaxListed deliveries for a page; with To, about
// 40 more, to find where the page begins. In a list of all destinations, each owner looks at each of its
// destinations. A list fails while a partition has no owner.
//
// To find deliveries in some states, or of a user, an owner looks at all deliveries of the destinations
// that have any in these states: a tenth of a second for a million. It answers after each 4,000 of
// them, so that fetching and settling do not wait.
//
// A node that becomes the owner of a partition reads the headers of its dead letters, without their
// bodies. Until then it attempts deliveries, but questions about dead letters wait, and fail after four
// seconds.
//
// # Partitions
//
// A hash assigns each destination to one of Config.Partitions partitions. One node owns a
// partition, and only this node hands out its deliveries. So one node has their claims and their
// order in its memory. The servers keep only a consumer for each partition, whose state does not
// grow with the number of waiting deliveries. MaxConcurrent and the rates of a webhook.Forwarder
// hold for a destination across all nodes. The price is that only one node at a time serves a
// destination. When nodes come and go, partitions move. The states of a partition on its owner:
//
//	take: the first record is stored
//	  │
//	  ▼          read up to that record          another node is to own it
//	reading ───────────────────────────▶ open ─────────────────────────────▶ draining
//	  │                                   │ ▲                                   │  │
//	  │                                   │ └────── this node is to own it ─────┘  │
//	  ▼                                   ▼                                        ▼
//	lost: given away once nothing is claimed, taken over by another node, or closed
//
// # How it works
//
// There is one stream. The messages of the partition n have the following four subjects. Each
// begins with the name of the stream, which is left out here.
//
// n.log.put has records with new deliveries, which any node may put. If the deliveries of a Put fit
// into one message, they share it with those of other calls. A larger Put is stored in an atomic
// batch of messages.
//
// n.log.own has the records of the owner. The server stores a record only if its writer knows the
// sequence of the previous record under this subject. So the records are a chain, and the owner is the
// node that wrote the last record. A node that has lost the partition can write no more records. If the
// last record names a node that does not serve the partition, because no answer to its first record
// came, that node takes the partition again or gives it away. A record says which deliveries have ended,
// and up to which message the owner has looked for duplicates. It also has the deliveries that are put
// back, with their bodies. Dead letters are messages in an atomic batch with the record that ends their
// deliveries. Their subjects are dead.n and the destination, and a header has the Seq.
//
// n.key has the dedup keys of purged deliveries, 16 bytes each. The server deletes them after
// Config.DedupWindow.
//
// n.damaged has messages and deliveries that could not be read.
//
// The owner reads all messages of its partitions, including the puts of its own node, by a consumer
// without acknowledgements. It leaves duplicates out, and reports them to the node that put them.
// For a waiting delivery it keeps about 200 bytes in memory, and about 60 for a dead letter. It also keeps the delivery itself if
// the delivery is due within ten seconds and there is room in 32 MB, of which a destination may take
// half of what the others leave. Otherwise Fetch reads the delivery from the stream.
//
// The deliveries of a destination with one Key are in the order of Seq, which a delivery keeps when it is
// stored again. The owner has this order in its memory, and a new owner finds it out when it reads the
// log. So a release stores nothing. A key takes about 150 bytes while a delivery with it waits, and a
// delivery without a key takes nothing more.
//
// The cleaner purges a log up to the first message that has a waiting delivery. It moves the
// waiting deliveries of the first messages to the end of the log, in a record, in two cases: the
// log has more than four times the bytes of its waiting deliveries plus 1 MB, or it has bytes of an
// erased user.
//
// Heartbeats, settings, audiences and their members are messages of the same stream. Each of them
// replaces its predecessor.
package natsqueue
