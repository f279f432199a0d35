// Package pgqueue keeps deliveries in PostgreSQL, 13 or newer: a webhook.Store
// that any number of processes share. Each added process adds throughput, and
// one that dies loses nothing: the others take over what it had claimed once its
// heartbeats have ended.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	...
//	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{})
//	...
//	f, err := webhook.New(webhook.Config{Store: store, ...})
//
// webhook.Forwarder.ForwardTx stores an event in a transaction of the caller's own, the
// transactional outbox: it is forwarded if, and only if, what it tells of was committed.
//
// # What it promises
//
// Put returns once PostgreSQL has committed: with synchronous_commit at its
// default, what was accepted survives the loss of power. A delivery is handed to one
// node at a time, while the heartbeats of that node are stored. The others take over
// from a node without heartbeats within Config.Claim, and may attempt again what it was
// attempting. When the database was away, nodes wait for each other as long again, and
// what a node has claimed stays claimed if it comes back in time. Whatever part of a
// transaction's answer is lost, each delivery stays one: Put may be called again, and a
// settlement is stored once.
//
// A node claims chunks of up to 256 deliveries of a destination, as it has room, so that
// a node that is slower, or whose destinations are, takes less. Config.MaxConcurrent and
// rates of a webhook.Forwarder hold for each node.
//
// Due times are compared with the clock of the database. The clocks of nodes
// are to be right to about a second, as NTP keeps them: one that is ahead
// delays what it puts by as much.
//
// A Store keeps no webhook.History: to keep what was delivered it would have to write
// each body once more.
//
// # Connections
//
// The pool should be the Store's own, with five to eight connections: heartbeats
// wait for a connection as all else does. One more is kept outside of the
// pool to listen for notifications. Behind a pooler that gives each transaction a
// connection of its own, set Config.NoListen, and in the pool's configuration
// pgx.QueryExecModeExec or another DefaultQueryExecMode without prepared statements,
// unless the pooler knows them, as PgBouncer does from 1.21 on.
//
// Transactions of the pool are READ COMMITTED, PostgreSQL's default: Open refuses
// another default_transaction_isolation. That of ForwardTx is the caller's.
//
// # Schema
//
// Open creates the tables, and brings them to its version; several processes may do
// so at once. A program whose role may not do that sets Config.NoMigrate, and
// somebody else applies what SQL returns, before the first program of that version.
//
// Programs of different versions work side by side on the newest schema of them, as
// while they are replaced one by one: a migration adds, and takes away only what no program
// has used since some version. The schema knows that version, and programs
// older than that refuse to open it.
//
// The views waiting and dead_letters show with psql what waits, for whom and why, and
// what was given up:
//
//	SELECT destination, state, reason, sum(deliveries), min(due) FROM hookferry.waiting GROUP BY 1, 2, 3;
//
// # How it works
//
// Deliveries of one destination that are put at the same time share a row, a
// chunk, of up to 256. So PostgreSQL has a few statements for each hundred
// deliveries under load, and one row for each delivery when there is little to
// do. A node claims chunks, hands out what is in them, and stores what became
// of it: bits in the row, or its end. A node that delivers claims what it puts with the
// same statement; the others are notified of the rest, and look every Config.Poll for
// what they did not hear of.
//
// Finished rows are not left to vacuum, which a transaction that stays open holds up:
// chunks are kept in four partitions in turn, and the keys by which puts are recognised in
// two. Those that are over are truncated.
package pgqueue
