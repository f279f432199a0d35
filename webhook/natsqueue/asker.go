package natsqueue

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/store"
)

// A question is a request from any node to the node that owns a partition.
type question struct {
	Kind      string
	Partition int
	From      string      // to count: the name behind which the answer begins
	Only      []string    // to count: these destinations, or all if it is empty
	Query     store.Query // to list; for changeErase, its User
	After     uint64      // to list: the number behind which the answer begins
	Max       int         // to list: the most refs in the answer
	Refs      []store.Ref // to read or to change
	Change    string
}

// The kinds of questions.
const (
	askCounts  = "counts"  // count the waiting deliveries of each destination, in the order of their names
	askDead    = "dead"    // count the dead letters
	askList    = "list"    // list refs in the order of Query
	askRecords = "records" // read the deliveries with these refs
	askChange  = "change"  // make the Change to the deliveries with these refs
)

// The changes.
const (
	changeHasten  = "hasten" // waiting ones alone
	changeRevive  = "revive" // dead letters alone
	changeDiscard = "discard"
	changeErase   = "erase" // discard those of the user, and have the cleaner purge their bytes
)

// An answer is the owner's reply to a question.
type answer struct {
	Counts []store.DestinationCounts
	Next   string // the From of the question for further counts; empty if there are no more

	Dead       int
	DeadBytes  int64
	OldestDead time.Time

	Refs    []store.Ref
	More    bool    // further refs may follow, behind the number After
	After   uint64  // the last number that the owner has looked at
	Records []found // of the first refs of the question
	Done    int     // how many refs of the question, from the first on, it is about
	Changed int
	Claimed int
	Missed  int // to erase: how many have changed since they were listed, or are being revived
	Error   string
	Full    bool // the error is store.ErrQueueFull
	Again   bool // another node has taken over the partition before anything was done: ask that node
}

// add adds the counts of an answer about changes.
func (a *answer) add(b answer) {
	a.Changed, a.Claimed, a.Missed = a.Changed+b.Changed, a.Claimed+b.Claimed, a.Missed+b.Missed
}

// A found is a delivery in an answer. If the owner does not have it, the State is empty.
type found struct {
	State  store.State
	Record []byte // see Record.AppendBinary
}

// encode encodes a question, an answer or a heartbeat. JSON would change names that are not UTF-8.
func encode(v any) []byte {
	var b bytes.Buffer
	gob.NewEncoder(&b).Encode(v) // no error: gob can encode these types
	return b.Bytes()
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

// An asker asks the owners of partitions, and answers for the partitions of this node.
type asker struct {
	conn       *conn
	life       *lifetime
	index      *index
	partitions *partitions
	loader     *loader
	recorder   *recorder
	letters    *letters
}

const (
	// answerLen is the most counts that an answer has, if their names fit; see answerRoom. Deliveries
	// take longer, because the owner may have to read each from the stream: an answer is about up to
	// pageLen of them.
	answerLen = 1000
	// askEvery is how often a question is repeated while no owner answers.
	askEvery = 500 * time.Millisecond
)

// ask returns the answer to q by the owner of the partition. If this node is not the owner,
// ask repeats the question until an owner says that it is working on the answer. It asks the next
// owner if the owner loses the partition before it has done anything.
func (ak *asker) ask(ctx context.Context, q question) (a answer, err error) {
	if err := ak.life.calls.Enter(ctx); err != nil {
		return a, err
	}
	defer ak.life.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", q.Partition, context.DeadlineExceeded))
	defer cancel()
	var sub *nats.Subscription // nil until another node is asked
	for {
		if p := ak.partitions.ready(q.Partition); p != nil {
			if a, err = ak.reply(ctx, p, &q); !a.Again {
				return a, err
			}
		}
		a = answer{}
		if sub == nil {
			if sub, err = ak.conn.nc.SubscribeSync(ak.conn.nc.NewInbox()); err != nil {
				return a, err
			}
			defer sub.Unsubscribe()
		}
		err := ak.conn.nc.PublishRequest(ak.conn.config.ask("owner"), sub.Subject, encode(q))
		for patience := askEvery; err == nil && !a.Again; patience = callTimeout {
			var m *nats.Msg
			hearing, cancel := context.WithTimeout(ctx, patience)
			m, err = sub.NextMsgWithContext(hearing)
			cancel()
			if err == nil && len(m.Data) > 0 { // an empty message says that the owner is working
				if err = decode(m.Data, &a); err == nil && a.Error != "" {
					err = errors.New(a.Error)
				}
				if a.Full {
					err = store.ErrQueueFull
				}
				if !a.Again {
					return a, err
				}
			}
		}
		if sleep(ctx, behind) != nil {
			return answer{}, context.Cause(ctx)
		}
	}
}

// asked handles the question of another node. It answers if this node owns the partition.
func (ak *asker) asked(m *nats.Msg) {
	var q question
	if decode(m.Data, &q) != nil || ak.life.calls.Enter(ak.life.ctx) != nil {
		return
	}
	ak.life.goroutines.Go(func() {
		defer ak.life.calls.Leave()
		p := ak.partitions.ready(q.Partition)
		if p == nil {
			return
		}
		m.Respond(nil)
		ctx, cancel := context.WithTimeout(ak.life.ctx, callTimeout)
		defer cancel()
		a, err := ak.reply(ctx, p, &q)
		if err != nil {
			a.Error, a.Full = err.Error(), errors.Is(err, store.ErrQueueFull)
		}
		m.Respond(encode(a))
	})
}

// reply answers a question about p.
func (ak *asker) reply(ctx context.Context, p *partition, q *question) (a answer, err error) {
	if q.Kind != askCounts && (q.Kind != askList || q.Query.HasState(store.StateDead)) {
		select { // until p knows the dead letters
		case <-p.listed:
		case <-p.live.Done():
		case <-ctx.Done():
			return a, fmt.Errorf("the owner of partition %d is still reading which dead letters there are: %w", p.n, context.Cause(ctx))
		}
	}
	switch q.Kind {
	case askCounts:
		a = p.counts(q.From, q.Only)
	case askDead:
		a = p.countDead()
	case askList:
		a = p.list(q)
	case askRecords:
		a, err = ak.records(ctx, p, q.Refs)
	case askChange:
		a, err = ak.change(ctx, p, q)
	}
	if err == nil && a.Changed == 0 && p.isLost() { // otherwise the whole change is made
		err = errLost
	}
	a.Again = err == errLost && a.Changed == 0
	return a, err
}

// errLost is the error of an answer that may be incomplete, and of a change that may be made in part.
var errLost = errors.New("another node has taken over the partition")

// records reads the first of the deliveries with these refs.
func (ak *asker) records(ctx context.Context, p *partition, refs []store.Ref) (a answer, err error) {
	entries, dead := p.find(refs)
	a.Done, a.Records = len(entries), make([]found, len(entries))
	if err = ak.loader.load(ctx, entries, func(ds []*store.Delivery) error {
		for i, d := range ds {
			if d == nil && entries[i] != nil { // it may be a dead letter by now
				dead[i] = p.letter(refs[i])
			} else if d != nil {
				record, _ := (&store.Record{Delivery: *d}).AppendBinary(nil) // no error: it was read from a record
				a.Records[i] = found{entries[i].state(), record}
			}
		}
		return nil
	}); err != nil {
		return a, err
	}
	messages, err := ak.letters.read(ctx, dead)
	for i, m := range messages {
		if m != nil {
			a.Records[i] = found{store.StateDead, m.Data}
		} else if dead[i] != nil && err == nil { // the servers have lost it
			ak.index.forget(refs[i], dead[i])
		}
	}
	return a, err
}

// change makes q.Change to the first of the deliveries with q.Refs.
func (ak *asker) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	entries, dead := p.find(q.Refs)
	a.Done = len(entries)
	switch q.Change {
	case changeHasten:
		clear(dead)
	case changeRevive:
		clear(entries)
	}
	w := newWrite(p)
	begin := func(ds []*store.Delivery) error {
		a.Claimed, a.Missed = ak.begin(w, entries, dead, ds, q)
		return nil
	}
	if q.Change == changeDiscard {
		ak.index.mu.Lock()
		begin(make([]*store.Delivery, len(entries)))
		ak.index.mu.Unlock()
	} else if err = ak.loader.load(ctx, entries, begin); err != nil {
		return a, err
	}
	if len(w.endings) > 0 {
		err = ak.recorder.write(ctx, w)
		if err == nil && w.begun {
			a.Changed = len(w.endings)
		}
		if err == nil && !w.whole {
			err = errLost
		}
	}
	if err == nil {
		var n, missed int
		n, missed, err = ak.letters.change(ctx, p, q.Refs, dead, q)
		a.Changed, a.Missed = a.Changed+n, a.Missed+missed
	}
	return a, err
}

// begin adds to w the endings of those entries that q changes. It returns how many it does not change
// because they are claimed, and how many deliveries are neither an entry nor dead any more. ds has the
// deliveries, unless q discards them. The index is locked.
func (ak *asker) begin(w *write, entries []*entry, dead []*letter, ds []*store.Delivery, q *question) (claimed, missed int) {
	for i, e := range entries {
		if e == nil || !e.waits() {
			if dead[i] == nil {
				missed++
			}
			continue
		}
		if q.Change == changeErase && ds[i].User != q.Query.User {
			continue
		}
		if e.claim != 0 {
			claimed++
			continue
		}
		by, behind := store.Settlement{Verdict: store.Done}, e.behind
		if q.Change == changeHasten {
			if ds[i] == nil || behind {
				continue
			}
			by = store.Settlement{Verdict: store.Retry, Delivery: *ds[i]}
			if !by.Delivery.Hasten(now()) {
				continue
			}
		}
		ak.index.claim(e) // from here on nobody else can
		e.write = w
		end := ak.recorder.ending(e, ds[i], &by)
		end.news, end.erase = !behind, q.Change == changeErase
		w.endings = append(w.endings, end)
	}
	return claimed, missed
}

// about asks the owners of refs the question q about them, in questions of a bounded size, and passes
// each answer to use, with the refs that it is about. It asks the owners at the same time, but calls
// use one call after the other.
func (ak *asker) about(ctx context.Context, q question, refs []store.Ref, use func(answer, []store.Ref)) error {
	of := make(map[int][]store.Ref)
	for _, r := range refs {
		n := ak.conn.config.partition(r.Destination)
		of[n] = append(of[n], r)
	}
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	for n, refs := range of {
		q := q
		q.Partition = n
		wg.Go(func() {
			for len(refs) > 0 {
				q.Refs = refs[:fit(len(refs), pageLen, ak.conn.answerRoom(), func(i int) int64 { return refSize(refs[i]) })]
				a, err := ak.ask(ctx, q)
				mu.Lock()
				use(a, refs[:a.Done])
				failed = cmp.Or(failed, err)
				mu.Unlock()
				if refs = refs[a.Done:]; err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// changeAll makes the change of q to the deliveries with these refs, without repetitions. It returns the
// counts of all answers.
func (ak *asker) changeAll(ctx context.Context, q question, refs []store.Ref) (sum answer, err error) {
	err = ak.about(ctx, q, refs, func(a answer, _ []store.Ref) { sum.add(a) })
	return sum, err
}

// read reads the deliveries with these refs. The result lacks those that do not exist.
func (ak *asker) read(ctx context.Context, refs ...store.Ref) (map[store.Ref]store.Record, error) {
	all := make(map[store.Ref]store.Record, len(refs))
	err := ak.about(ctx, question{Kind: askRecords}, refs, func(a answer, refs []store.Ref) {
		for i, r := range refs {
			var d store.Record
			if a.Records[i].State == "" {
				continue
			}
			if err := d.UnmarshalBinary(a.Records[i].Record); err != nil || d.Ref() != r {
				ak.conn.config.Logger.Error("natsqueue: a delivery cannot be read, and no list has it", "destination", r.Destination, "number", r.Seq, "error", err)
				continue
			}
			d.State = a.Records[i].State
			all[r] = d
		}
	})
	return all, err
}

// A merger merges the lists of several partitions. Its sources are the lists that it has not
// yielded completely.
type merger struct {
	asker   *asker
	query   *store.Query
	sources []*source
}

// A source has the next refs in the list of a partition. More follow, unless question is nil.
type source struct {
	question *question
	refs     []store.Ref
}

// merge returns a merger of the lists of all partitions that have deliveries which q may select.
func (ak *asker) merge(q *store.Query, after uint64, max int) *merger {
	m := &merger{asker: ak, query: q}
	some := make(map[int]bool)
	for _, name := range q.Destinations {
		some[ak.conn.config.partition(name)] = true
	}
	for n := range ak.conn.config.Partitions {
		if len(some) == 0 || some[n] {
			m.sources = append(m.sources, &source{question: &question{Kind: askList, Partition: n, Query: *q, After: after, Max: min(max, pageLen)}})
		}
	}
	return m
}

// fill asks for the next refs of each source that has none. A source may still have none afterwards.
func (m *merger) fill(ctx context.Context) error {
	errs := make([]error, len(m.sources))
	var wg sync.WaitGroup
	for i, x := range m.sources {
		if x.question == nil || len(x.refs) > 0 {
			continue
		}
		wg.Go(func() {
			a, err := m.asker.ask(ctx, *x.question)
			x.refs, errs[i] = a.Refs, err
			if x.question.Max, x.question.After = pageLen, a.After; !a.More {
				x.question = nil
			}
		})
	}
	wg.Wait()
	m.sources = slices.DeleteFunc(m.sources, func(x *source) bool { return x.question == nil && len(x.refs) == 0 })
	return cmp.Or(errs...)
}

// next returns up to max further refs in the order of the list, or none at its end.
func (m *merger) next(ctx context.Context, max int) (refs []store.Ref, err error) {
	order := store.Listing{Query: m.query}
	for len(refs) < max {
		for slices.ContainsFunc(m.sources, func(x *source) bool { return len(x.refs) == 0 }) {
			if err := m.fill(ctx); err != nil {
				return nil, err
			}
		}
		if len(m.sources) == 0 {
			break
		}
		first := slices.MinFunc(m.sources, func(x, y *source) int { return order.Compare(x.refs[0].Seq, y.refs[0].Seq) })
		refs, first.refs = append(refs, first.refs[0]), first.refs[1:]
	}
	return refs, nil
}
