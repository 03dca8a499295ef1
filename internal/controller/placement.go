package controller

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/stelelog/stele/internal/metadata"
)

// ring deals out the brokers of one list: within a partition one after another, and from one partition to
// the next starting one further.
type ring struct {
	brokers []int32
	start   int
	dealt   int
	turn    int
}

// next deals the next broker in this turn (one turn per partition); false when all are dealt.
func (r *ring) next(turn int) (int32, bool) {
	if len(r.brokers) == 0 {
		return 0, false
	}
	if r.turn != turn {
		r.turn, r.dealt = turn, 0
		r.start = (r.start + 1) % len(r.brokers)
	}
	if r.dealt == len(r.brokers) {
		return 0, false
	}
	id := r.brokers[(r.start+r.dealt)%len(r.brokers)]
	r.dealt++
	return id, true
}

type rack struct {
	name     string
	unfenced ring
	fenced   ring
}

func (r *rack) next(turn int) (int32, bool) {
	if id, ok := r.unfenced.next(turn); ok {
		return id, true
	}
	return r.fenced.next(turn)
}

// placer spreads replicas over racks and brokers in stripes.
type placer struct {
	racks    []*rack
	start    int
	turn     int
	usable   int
	unfenced int
	random   *rand.Rand
}

// newPlacer takes the brokers that may hold new replicas: not shutting down, not all cordoned.
func newPlacer(brokers metadata.Map[int32, *metadata.BrokerRegistration], random *rand.Rand) *placer {
	p := &placer{random: random}
	byName := map[string]*rack{}
	for id, b := range brokers.All() {
		if b.InControlledShutdown || b.AllCordoned() {
			continue
		}
		// "No rack" sorts before every name.
		name := ""
		if b.Rack != nil {
			name = "r" + *b.Rack
		}
		r := byName[name]
		if r == nil {
			r = &rack{name: name}
			byName[name] = r
			p.racks = append(p.racks, r)
		}
		p.usable++
		if b.Fenced {
			r.fenced.brokers = append(r.fenced.brokers, id)
		} else {
			r.unfenced.brokers = append(r.unfenced.brokers, id)
			p.unfenced++
		}
	}
	slices.SortFunc(p.racks, func(a, b *rack) int { return cmp.Compare(a.name, b.name) })
	if len(p.racks) > 0 {
		p.start = random.IntN(len(p.racks))
	}
	for _, r := range p.racks {
		for _, list := range []*ring{&r.unfenced, &r.fenced} {
			if len(list.brokers) > 0 {
				list.start = random.IntN(len(list.brokers))
			}
		}
	}
	return p
}

// check says whether partitions with this many replicas can be placed.
func (p *placer) check(replicas int) *Error {
	switch {
	case p.unfenced == 0:
		return faultf(ErrInvalidReplicationFactor, "all brokers are fenced or shutting down")
	case replicas > p.usable:
		return faultf(ErrInvalidReplicationFactor, "replication factor %d, but only %d usable brokers", replicas, p.usable)
	}
	return nil
}

// place chooses the replicas of the next partition, leader first. check must have agreed to the number.
func (p *placer) place(replicas int) []int32 {
	if p.unfenced > 1 && p.turn > 0 && p.turn%p.unfenced == 0 {
		p.shuffle()
	}
	out := make([]int32, 0, replicas)
	first := p.start
	leaderRack := -1
	for i := range p.racks {
		at := (first + i) % len(p.racks)
		if id, ok := p.racks[at].unfenced.next(p.turn); ok {
			out = append(out, id)
			leaderRack = at
			break
		}
	}
	skipped := false
	for at := first; len(out) < replicas; at = (at + 1) % len(p.racks) {
		if at == leaderRack && !skipped {
			skipped = true
			continue
		}
		if id, ok := p.racks[at].next(p.turn); ok {
			out = append(out, id)
		}
	}
	p.turn++
	p.start = (p.start + 1) % len(p.racks)
	return out
}

func (p *placer) shuffle() {
	p.random.Shuffle(len(p.racks), func(i, j int) { p.racks[i], p.racks[j] = p.racks[j], p.racks[i] })
	for _, r := range p.racks {
		for _, list := range []*ring{&r.unfenced, &r.fenced} {
			p.random.Shuffle(len(list.brokers), func(i, j int) { list.brokers[i], list.brokers[j] = list.brokers[j], list.brokers[i] })
		}
	}
}

// directoryFor is where a new replica on a broker goes: its one directory, else for the broker to choose.
func (o *op) directoryFor(id int32) metadata.UUID {
	b, ok := o.img.Broker(id)
	switch {
	case !ok || len(b.Directories) == 0 || o.img.MetadataVersion() < metadata.LevelDirectories:
		return metadata.DirMigrating
	case len(b.Directories) == 1:
		return b.Directories[0]
	}
	return metadata.DirUnassigned
}
