package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
)

var (
	_ webhook.Roster  = (*Queue)(nil)
	_ webhook.Rosters = (*Queue)(nil)
)

// A member is a message under a subject of an audience and a user. While who joins is
// announced it names who does that: a claim, which is void after claimAge.
type member struct {
	user       string
	generation uint64
	claim      string
	seq        uint64 // 0 if there is none
	at         time.Time
}

// claimAge is how long announcing members may take before somebody else may begin
// anew: who did has died.
const claimAge = 2 * time.Minute

// text is the message of a member: the generation, and the claim.
func (m *member) text() []byte {
	b := strconv.AppendUint(nil, m.generation, 10)
	if m.claim != "" {
		b = append(append(b, ' '), m.claim...)
	}
	return b
}

// parseMember reads what text returns, and the user from the subject.
func parseMember(subject string, data []byte) (m member, err error) {
	text, claim, claimed := strings.Cut(string(data), " ")
	if m.generation, err = strconv.ParseUint(text, 10, 64); err != nil {
		return member{}, fmt.Errorf("natsqueue: a member: %w", err)
	}
	if m.claim = claim; claimed == (claim == "") || string(m.text()) != string(data) {
		return member{}, errors.New("natsqueue: a malformed member")
	}
	m.user, err = untoken(subject[strings.LastIndexByte(subject, '.')+1:])
	return m, err
}

// joined reports whether it is a member, and not only to become one.
func (m *member) joined() bool { return m.seq != 0 && m.claim == "" }

// taken reports whether somebody else is announcing it.
func (m *member) taken(now time.Time) bool {
	return m.seq != 0 && m.claim != "" && now.Sub(m.at) < claimAge
}

// audience is the subject of an audience, and members that of its members but for the
// last token.
func (c *Config) audience(name string) string { return c.state() + ".audience." + token(name) }
func (c *Config) members(audience string) string {
	return c.state() + ".member." + token(audience) + "."
}

// Begin implements webhook.Roster.
func (q *Queue) Begin(ctx context.Context, audience string) (uint64, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	subject := q.config.audience(audience)
	for {
		pages, err := q.reader.read(ctx, q.config.state(), request{Batch: 1, Seq: 1, Next: subject})
		if err != nil {
			return 0, fmt.Errorf("natsqueue: beginning a sync: %w", err)
		}
		var last, generation uint64
		if len(pages[0]) > 0 {
			last = pages[0][0].seq
			if generation, err = strconv.ParseUint(string(pages[0][0].data), 10, 64); err != nil {
				return 0, fmt.Errorf("natsqueue: beginning a sync: %w", err)
			}
		}
		generation++
		err = q.publisher.store(ctx, change(subject, last, strconv.AppendUint(nil, generation, 10)))
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("natsqueue: beginning a sync: %w", err)
		}
		return generation, nil
	}
}

// change is a message that replaces the one at the sequence last of its subject.
func change(subject string, last uint64, data []byte) *message {
	return &message{subject: subject, data: data, header: nats.Header{headerExpected: {decimal(last)}, headerID: {nuid.Next()}}}
}

// lookMembers is how many members are asked for in a request, at most.
const lookMembers = 256

// find returns what the stream has of users, in their order.
func (q *Queue) find(ctx context.Context, audience string, users []string) ([]member, error) {
	prefix := q.config.members(audience)
	found := make(map[string]member, len(users))
	for some := range slices.Chunk(users, lookMembers) {
		var ask request
		for _, user := range some {
			ask.MultiLast = append(ask.MultiLast, prefix+token(user))
		}
		ask.Batch = len(some)
		pages, err := q.reader.read(ctx, q.config.state(), ask)
		if err != nil {
			return nil, err
		}
		for _, s := range pages[0] {
			m, err := parseMember(s.subject, s.data)
			if err != nil {
				return nil, err
			}
			m.seq, m.at = s.seq, s.at
			found[m.user] = m
		}
	}
	all := make([]member, len(users))
	for i, user := range users {
		if all[i] = found[user]; all[i].seq == 0 {
			all[i].user = user
		}
	}
	return all, nil
}

// Join implements webhook.Roster. Who is no member is claimed first, so that it is one
// of all processes that announces it; what announces it is stored before it is
// a member.
func (q *Queue) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (joined int, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	for _, user := range users {
		if len(user) < 1 || len(user) > maxName {
			return 0, fmt.Errorf("natsqueue: member of %d bytes, not 1 to %d", len(user), maxName)
		}
	}
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	var mine []member
	defer func() {
		if err != nil {
			joined = 0
			q.disclaim(audience, mine)
		}
	}()
	for wait := pause / 10; len(users) > 0; wait = min(2*wait, pause) {
		all, err := q.find(ctx, audience, users)
		if err != nil {
			return 0, fmt.Errorf("natsqueue: joining: %w", err)
		}
		claimed, rest, err := q.claimMembers(ctx, audience, generation, all)
		mine = append(mine, claimed...)
		if err != nil {
			return 0, fmt.Errorf("natsqueue: joining: %w", err)
		}
		if users = rest; len(rest) > 0 { // others are at it
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return 0, ctx.Err()
			}
		}
	}
	var notices []webhook.Delivery
	for i := range mine {
		ds, err := announce(mine[i].user)
		if err != nil {
			return 0, err
		}
		notices = append(notices, ds...)
	}
	if err := q.announced(ctx, notices); err != nil {
		return 0, err
	}
	messages := make([]*message, len(mine))
	for i, m := range mine {
		last := m.seq
		m.claim = ""
		messages[i] = change(q.config.members(audience)+token(m.user), last, m.text())
	}
	mine = nil // what is announced stays so
	if err := q.publisher.send(context.WithoutCancel(ctx), messages...); err != nil {
		return 0, fmt.Errorf("natsqueue: joining: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.err == nil:
			joined++
		case !errors.Is(m.err, errChanged): // else it took so long that another has joined it
			return 0, fmt.Errorf("natsqueue: joining: %w", m.err)
		}
	}
	return joined, nil
}

// announced stores deliveries whose ids are new, which need not be remembered.
func (q *Queue) announced(ctx context.Context, ds []webhook.Delivery) error {
	all, err := q.prepare(ds)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := range all {
		all[i].header = putID(all[i].delivery) // sent again, it is stored once
	}
	_, err = q.put(q.background, all)
	return err
}

// claimMembers marks the members of all as seen in generation, and claims those that are
// none. It returns what was claimed, and the users of whom others know more.
func (q *Queue) claimMembers(ctx context.Context, audience string, generation uint64, all []member) (claimed []member, rest []string, err error) {
	prefix, claim, now := q.config.members(audience), nuid.Next(), time.Now()
	var of []member
	var messages []*message
	for _, m := range all {
		last := m.seq
		switch {
		case m.joined() && m.generation >= generation:
			continue
		case m.joined():
			m.generation = generation
		case m.taken(now):
			rest = append(rest, m.user)
			continue
		default:
			m.generation, m.claim = generation, claim
		}
		of = append(of, m)
		messages = append(messages, change(prefix+token(m.user), last, m.text()))
	}
	err = q.publisher.send(ctx, messages...)
	for i, m := range messages {
		switch {
		case errors.Is(m.err, errChanged):
			rest = append(rest, of[i].user)
		case m.err != nil:
			err = cmp.Or(err, m.err)
		case m.answered && of[i].claim != "":
			of[i].seq = m.seq
			claimed = append(claimed, of[i])
		}
	}
	return claimed, rest, err
}

// disclaim gives up claims. Those it cannot give up are void after claimAge.
func (q *Queue) disclaim(audience string, mine []member) {
	ctx, cancel := context.WithTimeout(q.background, writeTimeout)
	defer cancel()
	for _, m := range mine {
		q.purge(ctx, q.config.state(), q.config.members(audience)+token(m.user), m.seq+1)
	}
}

// members returns the members of an audience, by their users.
func (q *Queue) members(ctx context.Context, audience string) (map[string]member, error) {
	all := make(map[string]member)
	subject := q.config.members(audience) + "*"
	for next := uint64(1); ; {
		pages, err := q.reader.read(ctx, q.config.state(), request{Batch: 4 * lookMembers, MaxBytes: fetchBytes, Seq: next, Next: subject})
		if err != nil {
			return nil, err
		}
		if len(pages[0]) == 0 {
			return all, nil
		}
		for _, s := range pages[0] {
			next = s.seq + 1
			m, err := parseMember(s.subject, s.data)
			if err != nil {
				return nil, err
			}
			m.seq, m.at = s.seq, s.at
			if m.joined() {
				all[m.user] = m
			}
		}
	}
}

// Leave implements webhook.Roster. It reads the audience when it begins at the first
// member, and goes by that until it is through.
func (q *Queue) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(string) ([]webhook.Delivery, error)) (last string, left int, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return "", 0, err
	}
	defer q.calls.Leave()
	rest, err := q.after(ctx, audience, after)
	if err != nil {
		return "", 0, fmt.Errorf("natsqueue: leaving: %w", err)
	}
	page := rest[:min(len(rest), max)]
	if len(page) == max && max > 0 {
		last = page[max-1]
	}
	all, err := q.find(ctx, audience, page)
	if err != nil {
		return "", 0, fmt.Errorf("natsqueue: leaving: %w", err)
	}
	all = slices.DeleteFunc(all, func(m member) bool { return !m.joined() || m.generation >= generation })
	var notices []webhook.Delivery
	for _, m := range all {
		ds, err := announce(m.user)
		if err != nil {
			return "", 0, err
		}
		notices = append(notices, ds...)
	}
	if err := q.announced(ctx, notices); err != nil {
		return "", 0, err
	}
	for _, m := range all {
		// One who has joined again meanwhile has a later sequence.
		if err := q.purge(ctx, q.config.state(), q.config.members(audience)+token(m.user), m.seq+1); err != nil {
			return "", 0, fmt.Errorf("natsqueue: leaving: %w", err)
		}
		left++
	}
	if last == "" {
		q.mu.Lock()
		q.listed = listing{}
		q.mu.Unlock()
	}
	return last, left, nil
}

// A listing is the users of an audience in their order, as they were when a Leave began.
type listing struct {
	audience string
	users    []string
}

// after returns the users of an audience after one.
func (q *Queue) after(ctx context.Context, audience, after string) ([]string, error) {
	q.mu.Lock()
	l := q.listed
	q.mu.Unlock()
	if after == "" || l.audience != audience || l.users == nil {
		all, err := q.members(ctx, audience)
		if err != nil {
			return nil, err
		}
		l = listing{audience, slices.Sorted(maps.Keys(all))}
		q.mu.Lock()
		q.listed = l
		q.mu.Unlock()
	}
	i, found := slices.BinarySearch(l.users, after)
	if found {
		i++
	}
	return l.users[i:], nil
}

// Members implements webhook.Roster. It has the names of all members in memory.
func (q *Queue) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := func() (map[string]member, error) {
			if err := q.calls.Enter(ctx); err != nil {
				return nil, err
			}
			defer q.calls.Leave()
			return q.members(ctx, audience)
		}()
		if err != nil {
			yield("", err)
			return
		}
		for _, user := range slices.Sorted(maps.Keys(all)) {
			if user > after && !yield(user, nil) {
				return
			}
		}
	}
}

// Audiences implements webhook.Rosters.
func (q *Queue) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return func(yield func(webhook.RosterAudience, error) bool) {
		all, err := q.audiences(ctx)
		if err != nil {
			yield(webhook.RosterAudience{}, fmt.Errorf("natsqueue: audiences: %w", err))
			return
		}
		for _, a := range all {
			if !yield(a, nil) {
				return
			}
		}
	}
}

func (q *Queue) audiences(ctx context.Context) (all []webhook.RosterAudience, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	for next := uint64(1); ; {
		pages, err := q.reader.read(ctx, q.config.state(), request{Batch: 4 * lookMembers, MaxBytes: fetchBytes, Seq: next, Next: q.config.state() + ".audience.*"})
		if err != nil {
			return nil, err
		}
		if len(pages[0]) == 0 {
			break
		}
		for _, s := range pages[0] {
			next = s.seq + 1
			name, err := untoken(s.subject[strings.LastIndexByte(s.subject, '.')+1:])
			if err != nil {
				return nil, err
			}
			generation, err := strconv.ParseUint(string(s.data), 10, 64)
			if err != nil {
				return nil, err
			}
			all = append(all, webhook.RosterAudience{Name: name, Generation: generation})
		}
	}
	slices.SortFunc(all, func(a, b webhook.RosterAudience) int { return strings.Compare(a.Name, b.Name) })
	// One that is begun while it is read is found twice: the later is the last.
	n := 0
	for i := range all {
		if i+1 < len(all) && all[i+1].Name == all[i].Name {
			continue
		}
		all[n] = all[i]
		n++
	}
	return all[:n], nil
}
