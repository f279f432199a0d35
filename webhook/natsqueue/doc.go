// Package natsqueue keeps deliveries in NATS JetStream: a webhook.Store that any number of nodes
// share. It needs servers of version 2.12.1 or newer. Each node adds throughput. A node that dies
// loses nothing: once its claim has expired, the others take over what it owned.
//
//	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1), nats.PingInterval(5*time.Second))
//	...
//	store, err := natsqueue.Open(ctx, nc, natsqueue.Config{})
//	...
//	f, err := webhook.New(webhook.Config{Store: store, ...})
//
// # What it promises
//
// Put and Settle return once the server has acknowledged what they store. What that is worth when
// power is lost depends on the server. JetStream acknowledges what it has handed to the operating
// system, and syncs its files every two minutes (sync_interval). If a process of the server is killed,
// nothing is lost. If its machine loses power, up to two minutes of what was acknowledged are lost.
// Either of these helps:
//
//   - Three replicas (Config.Replicas) on machines that do not fail together: two of them have what
//     is acknowledged.
//   - sync_interval: always in the server's jetstream block. It syncs each write before it is
//     acknowledged, and costs accordingly.
//
// A client cannot learn a server's sync_interval. So Open logs a warning when the stream has no
// replicas.
//
// A Put is stored as a whole or not at all. Each call gets its answer or an error within five seconds,
// whatever the server does. Calls that read or change much, such as Dead, Waiting and Erase, make
// several requests; each of these is answered in that time.
//
// One node at a time claims a delivery, while it gives heartbeats. A node without heartbeats for
// Config.Claim loses its partitions to the others, which may repeat the attempts that it was making.
// If the leader of the stream is gone too, the servers elect another one first, which takes 4 to 10
// seconds. While the servers are away nobody is taken for dead: nodes wait for each other as long
// again, and keep what they own if they are back in time. The server refuses the records of a node
// that has lost a partition and does not know it yet.
//
// A message or a delivery that cannot be read, because it is damaged or of a later version, is logged.
// The cleaner moves it to the subject n.damaged, for people to look at. It hides nothing else. The same
// is true of a message that the servers have lost.
//
// When a server takes no more (MaxBytes, max_file_store, or the bound of the account), Put returns
// webhook.ErrQueueFull, and what waits is delivered all the same: the store gives up a reserve of 512
// KB in the stream for the records that make room. A server whose disk is full to the last byte stops
// JetStream until it is restarted. With three replicas the other two go on.
//
// If somebody deletes the stream, the next heartbeat creates it again. What waited in it is lost.
//
// Due times are compared with the clock of the node that owns the destination, and heartbeats by the
// servers' clocks. Both have to be right to about a second, as NTP keeps them.
//
// # What it does not promise
//
//   - Put says that a delivery is a duplicate only if its owner answers within a quarter of a second
//     after it is stored. While a partition has no owner, Put says that all was stored. The next owner
//     leaves the duplicates out.
//   - There is no History. A delivered delivery leaves the stream with its message; keeping it would
//     mean to store it a second time. Set webhook.Config.Observer to keep a history elsewhere.
//   - Counts.DeadBytes is -1: it would take reading all dead letters.
//   - Erase finds deliveries that wait and dead letters. Their bytes leave the stream once the cleaner
//     has moved what waits before them in the same partition: within a second, unless that is much. A
//     message that a delivery of the user has left before, delivered or retried, stays until the log
//     is cleaned up to it.
//   - Settings are read from a replica that has caught up with the leader. Lists of members, audiences
//     and dead letters may be some milliseconds old.
//
// # Partitions
//
// A hash divides destinations into Config.Partitions. One node owns a partition, and alone hands out
// its deliveries. So claims, and the order of what waits, are in the memory of one node, no consumer
// state grows with them, and MaxConcurrent and rates of a webhook.Forwarder hold for a destination
// across all nodes. The price is that one node at a time serves a destination. When nodes come and go,
// partitions move. These are the states of a partition on its owner:
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
// There is one stream. A partition n has messages under four subjects of it.
//
// n.log.put has chunks of deliveries, by any node. A Put for one partition shares a message with
// others. A larger one is an atomic batch. The server keeps the batches of a stream without replicas
// in files of their own, which takes two to three milliseconds, so small puts avoid them.
//
// n.log.own has the records of the owner. The server stores a record only if the last one of its
// subject is the one that its writer knows. So the records are a chain, the owner is the node that
// wrote the last one, and a node that lost the partition writes no more. A record says which
// deliveries have ended and up to where the owner has looked for duplicates. It has the deliveries
// that are put back, with their bodies. Dead letters are messages in an atomic batch with the record
// that buries them.
//
// n.key has the dedup keys of deliveries that are purged. The server forgets them after
// Config.DedupWindow.
//
// n.damaged has what could not be read.
//
// The owner reads its partitions from the first message on, by a consumer without acknowledgements,
// the puts of its own node included. It leaves duplicates out, and tells the node that put them. It
// has about 150 bytes in memory for a delivery that waits, and the delivery itself if it is due within
// ten seconds and Config.CacheBytes has room. Else Fetch reads it.
//
// The cleaner has one rule: it purges a log up to the first message in which something waits. If the
// log is longer than four times what waits and a megabyte, or has bytes of an erased user, it moves
// what waits in the first messages behind the log, in a record. A node that takes a partition over
// asks for the first message once it has read the log: what it has read before that message was purged
// meanwhile.
//
// Heartbeats, settings, audiences and their members are messages of the same stream. Each replaces the
// one before it. A Confirm changes members one by one and then the record of the audience, so it can
// be repeated after a crash.
package natsqueue
