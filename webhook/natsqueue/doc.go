// Package natsqueue keeps deliveries in NATS JetStream: a webhook.Queue that any number
// of processes share. It needs servers of version 2.11 or newer. Each added
// process adds throughput, and one that dies loses nothing: what it owned is taken
// over by the others once its claim has expired.
//
//	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1), nats.PingInterval(5*time.Second))
//	...
//	queue, err := natsqueue.Open(ctx, nc, nil)
//	...
//	f, err := webhook.New(webhook.Config{Store: webhook.FromQueue(queue), ...})
//
// # What it promises
//
// Put returns once the server has acknowledged every message, and Settle once it has
// acknowledged what became of them. What that is worth when power is lost is the server's
// to say. JetStream acknowledges what it has handed to the operating system, and
// syncs its files every two minutes (sync_interval): a process of the server may be
// killed, and nothing is lost; a machine that loses power takes up to two minutes of
// what was acknowledged with it. Either of these helps:
//
//   - Three replicas (Config.Replicas) on machines that do not fail together: what
//     is acknowledged is on two of them.
//   - sync_interval: always in the server's jetstream block, which syncs each write
//     before it is acknowledged, and costs accordingly.
//
// A client cannot learn a server's sync_interval (it is told to the system account and by
// the monitoring port, in the jetstream part of /varz). So Open warns, in Config.Logger,
// when a stream has no replicas or is in memory.
//
// A delivery is handed to one process at a time, while that process gives signs of life:
// one that gives none for Config.Claim loses what it owns to the others, which may then
// attempt again what it was attempting. They look three times in a Claim, so it takes
// them up to a third longer. If the server that led a stream is gone too, or out of
// reach, the others have to elect another leader first, in 4 to 10 seconds. When the
// servers were away, processes wait for each other as long again, and what they own stays
// theirs if they come back in time.
//
// What a process stores that does not know yet that another owns the partition counts for
// nothing, but for dead letters: it stops sending them when its claim has expired. One that is
// under way then, in a connection that has fallen silent or a process that was stopped for
// longer than a tenth of a Claim in between, may be stored although the delivery is
// attempted again. It is there once at most.
//
// A delivery that cannot be read, as it is damaged or was stored by a later version, is logged and
// left where it is. What was stored after it for the same destination is erased message by
// message then, which costs more.
//
// Put is not atomic: when the server fails in the middle of it, some of its deliveries may
// be stored. They are recognised when the call is made again, as any delivery is that was
// put within Config.DedupWindow. The server keeps that in memory; when it starts again it
// finds it in the messages that are still there, and no longer knows of deliveries
// that were settled.
//
// Due times are compared with the clock of the process that owns the destination, and
// signs of life by the servers' clocks. Both are to be right to about a second, as NTP
// keeps them.
//
// # Partitions
//
// Destinations are divided into Config.Partitions by a hash. Each partition is owned by one
// process, which alone hands out its deliveries. So leases, turns and what waits are in the
// memory of one process, no consumer state grows with them, and MaxConcurrent and rates of
// a webhook.Forwarder hold for a destination across all processes. The other side of it
// is that one destination is served by one process at a time. When processes come and go,
// partitions move; a process gives one away once nothing of it is leased, and hands out
// nothing of it until then.
//
// # How it works
//
// A delivery is a message of the stream, under a subject of its partition and
// destination, and its id the Nats-Msg-Id: the server leaves out what it has. What is not
// due within ten seconds is put under a subject of its destination and the time, to about
// a thirtieth of the wait. The owner reads its partitions from the first message on, by
// a consumer without acknowledgements; it keeps what is due soon in memory as far
// as Config.CacheBytes allows, and of the rest its number, and the first of each
// subject: waiting costs memory by destinations and times, not by deliveries. It is read when
// it is due. Scheduled messages of servers 2.12 would do the waiting too, but
// the time of the next delivery, the counts and the order of what is due are then
// out of sight, and each one is stored twice.
//
// What is done is told by records, of many deliveries each, under a subject of the
// partition, and erased by purges up to a sequence, of many deliveries each. Both cost a
// tenth of what acknowledgements or deletions of single messages do. A delivery that is
// to be tried again is stored anew, with a note of the message that it was: that alone settles
// the old one, should no record follow.
//
// Who owns a partition is told by the last message under a subject of it, written where
// the one before is still the last. Its sequence is the epoch of that owner, whose
// records and retries carry it. What one writes who does not know yet that
// another owns the partition comes behind that message, and counts for nothing.
// So nothing has to be locked, and nobody can do harm by being late.
package natsqueue
