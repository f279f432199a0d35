// Package pgqueue keeps deliveries in PostgreSQL, 13 or newer: a webhook.Store that any number of
// processes share. Each process adds throughput. If one dies nothing is lost: the others take
// over what it had claimed once its heartbeats have ended.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	...
//	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{})
//	...
//	f, err := webhook.New(webhook.Config{Store: store, ...})
//
// webhook.Forwarder.ForwardTx stores an event in a transaction of the caller's own, the
// transactional outbox: the event is forwarded if, and only if, the transaction commits.
//
// # What it promises
//
// Put returns once PostgreSQL has committed: with synchronous_commit at its default, an accepted
// delivery survives the loss of power. A delivery is handed to one node at a time, while the
// heartbeats of that node are stored. Other nodes take over from a node without heartbeats within
// Config.Claim, and may repeat the attempts that it had in flight. An outage of the database makes
// no node dead: after it the nodes send heartbeats for that time again before they judge each other,
// and a node that comes back in time keeps its claims. If the answer to a transaction is lost, the store finds
// out what became of it: a delivery that is put again is stored once, and so is an outcome.
//
// A node claims chunks of up to 256 deliveries of a destination, as it has room for them. So a
// node that is slower, or whose destinations are, gets less. Config.MaxConcurrent and rates of a
// webhook.Forwarder hold for each node.
//
// Due times are compared with the clock of the database. The clocks of nodes have to be right to
// about a second, as NTP keeps them: a clock that is ahead delays what its node puts.
//
// A Store keeps no webhook.History: it would have to write each body once more.
//
// # Connections
//
// The pool should be the Store's own, with five to eight connections: heartbeats wait for a
// connection like all else. One more connection outside of the pool listens for notifications.
// Behind a pooler that gives each transaction a connection of its own, set Config.NoListen, and
// in the pool's configuration pgx.QueryExecModeExec or another DefaultQueryExecMode without
// prepared statements, unless the pooler knows them, as PgBouncer does from 1.21 on.
//
// Transactions of the pool are READ COMMITTED, PostgreSQL's default: Open refuses another
// default_transaction_isolation. Callers of ForwardTx choose that of their own transaction.
//
// # Schema
//
// Open creates the tables, and brings them to its version; several processes may do so at once. A
// program whose role may not do that sets Config.NoMigrate. Then somebody else applies what SQL
// returns, before the first program of that version starts.
//
// Programs of different versions work side by side on the newest schema of them, as happens while
// they are replaced one by one. A migration only adds; it removes nothing that programs since a
// certain version use. The schema records that version, and older programs refuse to open it.
//
// With psql, the views waiting and dead_letters show what waits, for whom and why, and what was
// given up:
//
//	SELECT destination, state, reason, sum(deliveries), min(due) FROM hookferry.waiting GROUP BY 1, 2, 3;
//
// # How it works
//
// Deliveries of one destination that are put at the same time share a row, a chunk. So under load
// PostgreSQL executes a few statements for each hundred deliveries, and without load each delivery
// has a row of its own. A node claims chunks, hands out their deliveries, and stores the outcomes: as bits in
// the row, and by deleting it with the last one. A node that delivers claims what it puts with
// the same statement. Other nodes are notified of the rest, and each searches the tables every
// Config.Poll for what no notification has reported.
//
// Finished rows are not left to vacuum, which an open transaction holds up. Chunks go to four
// partitions in turn, and the keys by which repeated puts are recognised to two. A partition is
// truncated once nothing in it is needed.
package pgqueue
