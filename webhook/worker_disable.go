package webhook

import (
	"context"
	"net/http"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// disableIfDue disables the destination of l if Config.DisableGone or Config.DisableAfter says so
// after a failed attempt with these results. Before that, it tells the observers that the destination
// fails. s is the settlement of the attempt. If the store fails, the next failed attempt tries again.
func (w *worker) disableIfDue(l *lane, results []result, s *store.Settlement) {
	now := w.config.now().UTC()
	d := Disabled{Destination: l.ID, Since: now, FailingSince: now, Reason: lastReason(&s.Delivery), Status: results[len(results)-1].attempt.Status}
	if w.config.DisableAfter > 0 || w.recorder.failures {
		var stage FailingStage
		if d.FailingSince, stage = w.recorder.accounts.of(l.ID).failed(now, w.config.DisableAfter/2); stage != "" {
			w.recorder.failed(Failing{l.ID, stage, d.FailingSince, d.Reason, d.Status})
		}
	}
	gone := w.config.DisableGone && s.Verdict == store.Bury
	for i := range results {
		gone = gone && results[i].attempt.Status == http.StatusGone
	}
	if !gone && (w.config.DisableAfter == 0 || now.Sub(d.FailingSince) < w.config.DisableAfter) {
		return
	}
	ctx, cancel := context.WithTimeout(w.attempts, w.config.Timeout)
	defer cancel()
	stored, err := w.pauses.set(ctx, d)
	if err != nil {
		w.config.Logger.Error("webhook: could not disable a destination that fails; its attempts go on", "destination", l.ID, "error", err)
	} else {
		w.recorder.countFor(l.ID, func(a *account) { a.failing = time.Time{} })
	}
	if !stored { // the destination was paused, or another node has disabled it
		return
	}
	text := "webhook: destination disabled; its deliveries wait until it is resumed"
	if w.config.BuryDisabled {
		text = "webhook: destination disabled; its deliveries become dead letters until it is resumed"
		// Make all deliveries due, so that they are buried at once, and not when they become due.
		_, _ = hastenWaiting(ctx, w.config.Store, l.ID)
	}
	w.config.Logger.Warn(text, "destination", l.ID, "reason", string(d.Reason), "status", d.Status, "since", d.FailingSince)
	w.recorder.tell(func(o Observer) {
		if o, ok := o.(DisableObserver); ok {
			o.Disabled(d)
		}
	})
}
