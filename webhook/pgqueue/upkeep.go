package pgqueue

import "context"

func (q *Queue) upkeep(ctx context.Context) error { return nil }
