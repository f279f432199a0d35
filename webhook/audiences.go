package webhook

import (
	"context"
	"iter"
	"strings"
)

// AudienceInfo is what is kept of an audience beside its members.
type AudienceInfo struct {
	// Destination and Trait identify it; see Forwarder.Audience and TraitName.
	Destination, Trait string
	// Name is what the audience was called when it was first synced or created;
	// it is Trait for names of over 255 bytes.
	Name string
	// Generation counts its syncs, and its Create.
	Generation uint64
}

// Audiences yields the audiences that were synced or created, by destination and
// trait, also those of destinations that are not known any more. An error ends
// it: ErrUnsupported if the store is no Rosters.
func (f *Forwarder) Audiences(ctx context.Context) iter.Seq2[AudienceInfo, error] {
	return func(yield func(AudienceInfo, error) bool) {
		rosters, ok := f.config.Store.(Rosters)
		if !ok {
			yield(AudienceInfo{}, ErrUnsupported)
			return
		}
		var last AudienceInfo // whose name may come next
		for a, err := range rosters.Audiences(ctx) {
			if err != nil {
				if last.Trait == "" || yield(last, nil) {
					yield(AudienceInfo{}, err)
				}
				return
			}
			destination, rest, ok := strings.Cut(a.Name, keySeparator)
			trait, name, isName := strings.Cut(rest, keySeparator)
			switch {
			case isName && last.Destination == destination && last.Trait == trait:
				last.Name = name
			case ok && !isName:
				if last.Trait != "" && !yield(last, nil) {
					return
				}
				last = AudienceInfo{Destination: destination, Trait: trait, Name: trait, Generation: a.Generation}
			}
		}
		if last.Trait != "" {
			yield(last, nil)
		}
	}
}

// Create makes the audience, with no members, unless it was synced or created
// before, so that Forwarder.Audiences yields it. It looks through all audiences,
// and returns ErrUnsupported if the store is no Rosters, or ErrClosed after
// Shutdown.
func (a *Audience) Create(ctx context.Context) error {
	for known, err := range a.f.Audiences(ctx) {
		if err != nil {
			return err
		}
		if known.Destination == a.destination && known.Trait == a.trait {
			return nil
		}
	}
	if a.f.open.Err() != nil {
		return ErrClosed
	}
	_, err := a.begin(ctx)
	return err
}
