package compile

import (
	"sync/atomic"
	"time"
)

// stopwatch adds up what the checks of a compilation take: the verifier after every pass, the check of every plan
// that is a candidate, in the planner and of what it gives, that of every layout, the proofs on the final program, on
// the code's launches and on what is linked. A nil stopwatch only runs them.
type stopwatch struct{ total atomic.Int64 } // ns

func (s *stopwatch) time(check func() error) error {
	start := time.Now()
	err := check()
	s.add(time.Since(start))
	return err
}

func (s *stopwatch) add(d time.Duration) {
	if s != nil {
		s.total.Add(int64(d))
	}
}

func (s *stopwatch) seconds() float64 {
	if s == nil {
		return 0
	}
	return time.Duration(s.total.Load()).Seconds()
}
