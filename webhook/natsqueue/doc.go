// Package natsqueue keeps deliveries in NATS JetStream: a webhook.Store that any number
// of nodes share. It needs servers of version 2.12.1 or newer. Each added
// node adds throughput, and one that dies loses nothing: what it owned is taken
// over by the others once its claim has expired.
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
// power is lost is the server's to say. JetStream acknowledges what it has handed to the operating
// system, and syncs its files every two minutes (sync_interval): a process of the server may be
// killed, and nothing is lost; a machine that loses power takes up to two minutes of
// what was acknowledged with it. Either of these helps:
//
//   - Three replicas (Config.Replicas) on machines that do not fail together: what
//     is acknowledged is on two of them.
//   - sync_interval: always in the server's jetstream block, which syncs each write
//     before it is acknowledged, and costs accordingly.
//
// A client cannot learn a server's sync_interval. So Open warns, in Config.Logger,
// when a stream has no replicas or is in memory.
//
// A Put is stored as a whole or not at all. Each call gets its answer or an error within five seconds,
// whatever the server does; calls that read or change much, such as Dead, Waiting and
// Erase, make several requests, each of which does.
//
// A delivery is claimed by one node at a time, while that node gives heartbeats:
// one that gives none for Config.Claim loses what it owns to the others, which may then
// attempt again what it was attempting. If the server that led the stream is gone too, or out of
// reach, the others have to elect another leader first, in 4 to 10 seconds. When the
// servers were away, nodes wait for each other as long again, and what they own stays
// theirs if they come back in time. What a node records that does not know yet that another owns
// the partition is refused by the server.
//
// A message or a delivery that cannot be read, because it is damaged or of a later version, is
// logged. When the log of its partition is cleaned, it is moved to a subject of its own,
// n.damaged, for people to look at. It hides nothing else. The same goes for a message that the
// servers have lost.
//
// When a server takes no more (MaxBytes, max_file_store, or the bound of the account), Put returns
// webhook.ErrQueueFull, and what waits is delivered all the same: a reserve of 512 KB in the stream
// is given up for the records that make room. A server whose disk is full to the last byte stops
// JetStream until it is restarted. With three replicas the other two go on.
//
// A stream that somebody deletes is created anew at the next heartbeat, unless Config.NoCreate is
// set. What waited in it is lost.
//
// Due times are compared with the clock of the node that owns the destination, and
// heartbeats by the servers' clocks. Both are to be right to about a second, as NTP
// keeps them.
//
// # What it does not promise
//
//   - Put says that a delivery is a duplicate only if its owner answers within a quarter of a second
//     after it is stored. While a partition has no owner, as its last one has just died, Put
//     says that all was stored. The next owner leaves the duplicates out.
//   - There is no History. A delivered delivery leaves the stream with the message that has it.
//     To keep it for longer, each delivery would have to be stored a second time. Set
//     webhook.Config.Observer to keep a history elsewhere.
//   - Counts.DeadBytes is -1: it would take reading all dead letters.
//   - Erase finds deliveries that wait and dead letters. Their bytes leave the stream once what waits
//     before them in the same partition has been moved: at once, unless that is much. A message that
//     the user's deliveries have left before, delivered or retried, stays until the log is cleaned up
//     to it.
//   - Settings are read from a replica that has caught up with the leader. Lists of members, audiences
//     and dead letters may be some milliseconds old.
//
// # Partitions
//
// Destinations are divided into Config.Partitions by a hash. Each partition is owned by one
// node, which alone hands out its deliveries. So claims and what waits are in the
// memory of one node, no consumer state grows with them, and MaxConcurrent and rates of
// a webhook.Forwarder hold for a destination across all nodes. The other side of it
// is that one destination is served by one node at a time. When nodes come and go,
// partitions move; a node gives one away once nothing of it is claimed, and hands out
// nothing of it until then.
//
// # How it works
//
// There is one stream. A partition n has messages under three subjects of it.
//
// n.log.put has chunks of deliveries, by any node. A Put for one partition shares a
// message with others that wait; a larger one is an atomic batch. The server keeps the batches of
// a stream without replicas in files of their own, at two to three milliseconds each, so what can
// do without them does.
//
// n.log.own has the records of the owner. Each expects the one before to be the last of its subject: so the
// records are a chain, the owner is who wrote the last one, a node that lost the
// partition writes no more, and whether a record whose answer was lost is stored can be told. A
// record says which deliveries have ended, which puts were duplicates, up to where puts were looked at,
// and has the deliveries that are put back, with their bodies. Dead letters are messages in
// an atomic batch with the record that buries them.
//
// n.key has the dedup keys of deliveries that are purged. The server forgets them after
// Config.DedupWindow.
//
// The owner reads its partitions from the first message on, by a consumer without acknowledgements: the
// puts of this node too. It leaves out duplicates, and tells the node that put them. In memory it has about
// 150 bytes for a delivery that waits, and the delivery itself if it is due within ten seconds
// and Config.CacheBytes has room; else that is read when it is fetched.
//
// Logs are cleaned by one rule. The log of a partition is purged up to the first message in which
// something waits. If the log is longer than four times what waits and a megabyte, what waits in its
// first messages is moved behind it, in a record. A record is only of use together with the
// messages before it, so records go the same way. A node that takes a partition over asks for the
// first message once it has read the log: what it has read before that one was purged meanwhile.
//
// Heartbeats, settings and members of audiences are messages of the same stream that take the
// place of the one before. Members and what announces them are one atomic batch.
package natsqueue
