package compile

import "time"

// stopwatch adds up what the checks of a compilation take: the verifier after every pass, the check of the
// plan and of its layout, the proofs on the final program and on the code's launches. A nil stopwatch only runs
// them.
type stopwatch struct{ total time.Duration }

func (s *stopwatch) time(check func() error) error {
	start := time.Now()
	err := check()
	s.add(time.Since(start))
	return err
}

func (s *stopwatch) add(d time.Duration) {
	if s != nil {
		s.total += d
	}
}
