// Package pgqueue keeps deliveries in PostgreSQL, 13 or newer. It is a store.Store that any
// number of processes share, and each process adds throughput. If a process dies, nothing is lost:
// the others take over its claims once its heartbeats have ended.
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
// Put returns once PostgreSQL has committed. With synchronous_commit at its default, an accepted
// delivery survives a power failure. Only one node at a time gets a delivery, as long as the
// heartbeats of that node are stored. Others take over from a node without heartbeats within
// Config.Claim, and may repeat the attempts that it had in flight.
//
// An outage of the database makes no node dead. After it, a node judges others only once its own
// heartbeats have been stored again for three quarters of Config.Claim. A node whose heartbeats
// come back in time keeps its claims.
//
// If the answer to a transaction is lost, the store finds out whether the transaction was
// committed. So a delivery that is put again is stored once, and an outcome is stored once.
//
// A node claims chunks of up to 256 deliveries of a destination, as it has room for them. So a
// slower node, or one with slower destinations, gets fewer. Config.MaxConcurrent and the rates of a
// webhook.Forwarder apply to each node separately.
//
// Due times are compared with the clock of the database. The clocks of nodes have to be right to
// about a second, as NTP keeps them: a clock that is ahead delays the deliveries that its node puts.
//
// With Config.History, deliveries stay in the database after they were delivered, with the attempt that
// succeeded. One that cannot be kept, for example because a lock is held, is delivered all the same, and
// counted by Unkept.
//
// # Connections
//
// The pool should be the Store's own, with five to twelve connections: heartbeats wait for a
// connection like everything else. One more connection outside of the pool listens for
// notifications.
//
// Behind a pooler that gives each transaction a connection of its own, set Config.NoListen. Unless
// the pooler supports prepared statements, as PgBouncer does from 1.21 on, also set
// DefaultQueryExecMode in the pool's configuration to pgx.QueryExecModeExec or another mode without
// prepared statements.
//
// Of several hosts in the connection string, the pool should use one that is not read-only:
// target_session_attrs=read-write. The Store drops connections to a server that has become read-only,
// or lacks the schema, so that new ones may lead to the right one. Ready says whether the store can be
// used. For passwords that change, set BeforeConnect in the pool's configuration.
//
// Transactions of the pool are READ COMMITTED, PostgreSQL's default: Open refuses another
// default_transaction_isolation. Callers of ForwardTx choose the level of their own transaction.
//
// # Schema
//
// Open creates the tables, and migrates them to its version. Several processes may do so at once. If
// the database role of a program may not change tables, set Config.NoMigrate, and apply the
// statements that SQL returns before the first program that needs the newer schema starts. If the
// tables belong to another role, that of the program needs, after each migration:
//
//	GRANT USAGE ON SCHEMA hookferry TO program;
//	GRANT ALL ON ALL TABLES IN SCHEMA hookferry TO program;
//	GRANT ALL ON ALL SEQUENCES IN SCHEMA hookferry TO program;
//
// Programs that need different versions of the schema work side by side, for example while they are
// replaced one by one. The schema has the version that the newest of them needs, and records the
// oldest version whose programs it supports. A migration removes nothing that these programs use.
// Older programs refuse to open the schema.
//
// With psql, the view waiting shows which deliveries wait, for which destination and why. The view
// dead_letters shows the dead letters:
//
//	SELECT destination, state, reason, sum(deliveries), min(due) FROM hookferry.waiting GROUP BY 1, 2, 3;
//
// # How it works
//
// Deliveries of one destination that are put at the same time share a row, a chunk. So under load
// PostgreSQL executes a few statements for each hundred deliveries, and without load each delivery
// has a row of its own. A node claims chunks, hands out their deliveries, and stores the outcomes as
// bits in the row; the last outcome deletes the row. A node that also delivers claims the deliveries
// that it puts, with the same statement. The database notifies other nodes of the unclaimed ones.
// Every Config.Poll, each node also searches for deliveries that no notification has reported.
//
// A delivery with a Key has a row of its own, in which it is behind until the one before it is settled.
// Whoever puts or releases a delivery with a Key locks one of 16,384 rows, which a hash of the destination
// and the Key selects. Put and PutTx wait for this lock. Settle does not: if a transaction of a caller has
// it, the next delivery is released within a quarter of a second after that transaction ends.
//
// The store does not leave finished rows to vacuum, because an open transaction can hold up vacuum.
// The table of chunks has four partitions, and that of the dedup window two, which are used in turn.
// A partition is truncated once nothing in it is needed.
//
// The transaction that settles deliveries as done adds them to the history, compressed, up to 256 of a
// destination to a row. The history is a ring of eight partitions of time. The oldest one is truncated
// before it takes new rows, so nothing is left to vacuum but what Discard and Erase have removed.
//
// The number of a delivery, its Seq, follows from the id of the chunk that it was put in, and stays in
// its record from then on. Rows of chunks and of the history have the first and the last of their
// numbers. So a page of a list reads the rows around its cursor, by indexes, and then their deliveries.
package pgqueue
