package natsqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// callTimeout bounds how long a call waits for the server's answer, including repeated requests.
	callTimeout = 4 * time.Second
	// askAgain is the first wait before a request is repeated, so that another replica may answer.
	// The wait doubles each time.
	askAgain = 250 * time.Millisecond
	// behind is the first wait before a request is repeated because the server cannot answer now or
	// the replica lags behind the leader. Each further wait is twice as long, up to pause.
	behind = 20 * time.Millisecond
	pause  = 100 * time.Millisecond
	// pageLen and pageBytes bound a page of a list, in messages and in bytes.
	pageLen   = 256
	pageBytes = 1 << 20
)

// errNoAnswer is the error of a call that the server does not answer within callTimeout.
var errNoAnswer = fmt.Errorf("natsqueue: no answer from the server within %v: %w", callTimeout, context.DeadlineExceeded)

// sleep waits for d. If ctx ends first, it returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errAgain is the error of a request that is to be sent again after a pause.
var errAgain = errors.New("the server cannot answer now")

// within calls f, which asks a server, until it gets an answer, at most until callTimeout. The
// context of the first call ends after patience, and the context of each further call after twice
// the time of the call before.
func within(ctx context.Context, patience time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	for wait := behind; ; patience, wait = 2*patience, min(2*wait, pause) {
		asking, cancel := context.WithTimeout(ctx, patience)
		err := f(asking)
		refused, ok := errors.AsType[*jetstream.APIError](err)
		again := ok && refused.Code == 503 // there is no leader now
		for _, e := range []error{errAgain, errBehind, context.DeadlineExceeded, nats.ErrNoResponders, jetstream.ErrNoStreamResponse} {
			again = again || errors.Is(err, e)
		}
		if again {
			sleep(asking, wait)
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case !again:
			return fmt.Errorf("natsqueue: asking the server: %w", err)
		}
	}
}

// messages reads the messages with the given sequences. An element is nil if the stream has no such
// message. The servers choose the replica that answers. It may lag behind the leader, so messages
// asks the leader for a message that the replica does not have.
func (cn *conn) messages(ctx context.Context, seqs ...uint64) ([]*jetstream.RawStreamMsg, error) {
	all, errs := make([]*jetstream.RawStreamMsg, len(seqs)), make([]error, len(seqs))
	var wg sync.WaitGroup
	for i, seq := range seqs {
		wg.Go(func() {
			errs[i] = within(ctx, askAgain, func(ctx context.Context) (err error) {
				if all[i], err = cn.stream.GetMsg(ctx, seq); errors.Is(err, jetstream.ErrMsgNotFound) {
					return nil
				}
				return err
			})
			if errs[i] != nil || all[i] != nil {
				return
			}
			var m held
			if m, errs[i] = cn.get(ctx, request{Seq: seq}); m.Sequence > 0 {
				all[i] = &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Sequence, Data: m.Data}
			}
		})
	}
	wg.Wait()
	return all, cmp.Or(errs...)
}

// allMessages is messages for those that were in the stream before: an element is nil only if the
// message is gone.
func (cn *conn) allMessages(ctx context.Context, seqs ...uint64) ([]*jetstream.RawStreamMsg, error) {
	all, err := cn.messages(ctx, seqs...)
	if err == nil && slices.Contains(all, nil) {
		// The leader may have been replaced by a server that it cannot reach, and not know it yet. Then
		// it does not know either that a message is gone.
		var info *jetstream.StreamInfo
		if info, err = cn.info(ctx, ""); err == nil && info.State.LastSeq < slices.Max(seqs) {
			err = errBehind
		}
	}
	return all, err
}

// A request selects messages of the stream, in the server's own words.
type request struct {
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Next      string   `json:"next_by_subj,omitempty"`
	Last      string   `json:"last_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
}

// page reads up to r.Batch messages that r selects, from any replica. If since is not 0, r has
// MultiLast, and page waits until the replica that answers has all messages up to since. The
// jetstream package cannot read several messages with one request.
func (cn *conn) page(ctx context.Context, r request, since uint64) (page []*jetstream.RawStreamMsg, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	err = within(ctx, askAgain, func(ctx context.Context) error {
		page = nil
		sub, err := cn.nc.SubscribeSync(cn.nc.NewInbox())
		if err != nil {
			return err
		}
		defer sub.Unsubscribe()
		if err := sub.SetPendingLimits(-1, -1); err != nil { // the request bounds what is pending
			return err
		}
		if err := cn.nc.PublishRequest("$JS.API.DIRECT.GET."+cn.config.Stream, sub.Subject, text); err != nil {
			return err
		}
		for {
			m, err := sub.NextMsgWithContext(ctx)
			if err != nil {
				return err
			}
			switch status := m.Header.Get("Status"); status {
			case "":
				x, err := readMessage(m)
				if err != nil {
					return err
				}
				page = append(page, x)
			case "204", "404": // the end of the page
				// After MultiLast, the sequence of the replica's latest message. It is missing if the
				// replica has no selected message.
				if upTo, _ := strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64); upTo < since {
					return errBehind
				}
				return nil
			default:
				return fmt.Errorf("the server: %s %s", status, m.Header.Get("Description"))
			}
		}
	})
	return page, err
}

// readMessage returns the message of the stream that is in an answer of the server.
func readMessage(m *nats.Msg) (*jetstream.RawStreamMsg, error) {
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	return &jetstream.RawStreamMsg{
		Subject: m.Header.Get(jetstream.SubjectHeader), Sequence: seq, Time: at, Header: m.Header, Data: m.Data,
	}, err
}

// errBehind is the error of a call if the servers that answer do not have the latest messages.
var errBehind = errors.New("the servers that answer do not have the latest messages of the stream")

// list yields the messages under subjects, in their order, from the sequence next up to the last one
// that the leader has. The
// pages may come from several replicas. If one of them lags behind, list may yield a message that has
// been replaced since, and then the message that has replaced it. An error ends the list.
func (cn *conn) list(ctx context.Context, subjects string, next uint64) iter.Seq2[*jetstream.RawStreamMsg, error] {
	return func(yield func(*jetstream.RawStreamMsg, error) bool) {
		last, err := cn.last(ctx, subjects)
		for wait := behind; err == nil && next <= last.Sequence; {
			var page []*jetstream.RawStreamMsg
			page, err = cn.page(ctx, request{Batch: pageLen, MaxBytes: pageBytes, Seq: next, Next: subjects}, 0)
			if err == nil && len(page) == 0 { // the replica lags behind, or the last message has been removed
				if err = errBehind; wait <= resend {
					err = sleep(ctx, wait)
				}
				if wait *= 2; err == nil {
					last, err = cn.last(ctx, subjects)
				}
			}
			for _, m := range page {
				next = m.Sequence + 1
				if !yield(m, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// documents returns the documents under subjects, by the names in their last tokens. It leaves out
// subjects of other programs.
func (cn *conn) documents(ctx context.Context, subjects string) (map[string]*jetstream.RawStreamMsg, error) {
	all := make(map[string]*jetstream.RawStreamMsg)
	for m, err := range cn.list(ctx, subjects, 1) {
		if err != nil {
			return nil, err
		}
		name, err := lastToken(m.Subject)
		if err != nil {
			continue
		}
		if all[name] = m; len(m.Data) == 0 { // it is removed
			delete(all, name)
		}
	}
	return all, nil
}

// lasts returns the last message of each of the subjects, which may be patterns, up to maxNodes
// messages. The replica that answers has all messages up to the sequence since.
func (cn *conn) lasts(ctx context.Context, since uint64, subjects ...string) ([]*jetstream.RawStreamMsg, error) {
	return cn.page(ctx, request{MultiLast: subjects, Batch: maxNodes}, since)
}

// A held is a message as the leader of the stream has it. Sequence is 0 if there is none.
type held struct {
	Subject  string
	Sequence uint64 `json:"seq"`
	Header   []byte `json:"hdrs"`
	Data     []byte
}

// last returns the last message of a subject, as the leader has it.
func (cn *conn) last(ctx context.Context, subject string) (held, error) {
	return cn.get(ctx, request{Last: subject})
}

// get returns a message as the leader has it. The jetstream package asks any replica.
func (cn *conn) get(ctx context.Context, r request) (found held, err error) {
	err = within(ctx, callTimeout, func(ctx context.Context) error {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		m, err := cn.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+cn.config.Stream, text)
		if err != nil {
			return err
		}
		var answer struct {
			Error   *jetstream.APIError
			Message held
		}
		if err = json.Unmarshal(m.Data, &answer); err == nil && answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
			err = answer.Error
		}
		found = answer.Message
		return err
	})
	return found, err
}

// info returns the server's description of the stream, with the subjects that match a filter.
func (cn *conn) info(ctx context.Context, subjects string) (info *jetstream.StreamInfo, err error) {
	err = within(ctx, callTimeout, func(ctx context.Context) error {
		info, err = cn.stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
		return err
	})
	return info, err
}

// purge erases the messages under a subject. If below is not 0, it erases only messages with a
// lower sequence than that.
func (cn *conn) purge(ctx context.Context, subject string, below uint64) error {
	return within(ctx, callTimeout, func(ctx context.Context) error {
		return cn.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(below))
	})
}

// delete erases a message, and reports whether it was there. The jetstream package hides the error
// code of the server, so delete looks whether the message that could not be deleted exists.
func (cn *conn) delete(ctx context.Context, seq uint64) (there bool, err error) {
	err = within(ctx, callTimeout, func(ctx context.Context) error { return cn.stream.DeleteMsg(ctx, seq) })
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		if m, failed := cn.get(ctx, request{Seq: seq}); failed == nil && m.Sequence == 0 {
			return false, nil
		}
	}
	return err == nil, err
}
