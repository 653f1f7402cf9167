//! From cells to figures. Everything that compares (times direct, added time, cost of an event) is computed within
//! one round, where both sides met the same machine; what is printed is the median over rounds.

use super::Results;
use super::cell::Cell;
use super::contender::Contender;
use super::scenario::Scenario;

/// Middle value, or the mean of the two in the middle; nothing of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl Cell {
    /// CPU time of the router per answered request, in microseconds.
    pub fn router_us(&self) -> Option<f64> {
        Some(self.router_cpu_s? * 1e6 / self.load.requests as f64)
    }
}

/// One contender under one kind of traffic, over all rounds.
pub struct Figures<'a> {
    results: &'a Results,
    contender: Contender,
    scenario: Scenario,
}

/// How the machine's time was spent, as fractions of cores times wall time.
pub struct Shares {
    pub client: f64,
    pub engines: f64,
    pub router: f64,
    pub others: f64,
}

impl<'a> Figures<'a> {
    /// Nothing where no round has such a cell.
    pub fn of(results: &'a Results, contender: Contender, scenario: Scenario) -> Option<Figures<'a>> {
        let figures = Figures { results, contender, scenario };
        figures.cells().next().is_some().then_some(figures)
    }

    fn cells(&self) -> impl Iterator<Item = &'a Cell> + use<'a> {
        let (contender, scenario) = (self.contender, self.scenario);
        self.results.cells.iter().filter(move |cell| cell.contender == contender && cell.scenario == scenario)
    }

    pub fn median(&self, figure: impl Fn(&Cell) -> f64) -> Option<f64> {
        median(self.cells().map(figure))
    }

    /// Median of `figure(cell, direct)`, with the direct cell of the same round.
    pub fn against_direct(&self, figure: impl Fn(&Cell, &Cell) -> f64) -> Option<f64> {
        self.against(Contender::Direct, self.scenario, |cell, direct| Some(figure(cell, direct)))
    }

    fn against(
        &self,
        contender: Contender,
        scenario: Scenario,
        figure: impl Fn(&Cell, &Cell) -> Option<f64>,
    ) -> Option<f64> {
        let partner = |cell: &Cell| {
            self.results
                .cells
                .iter()
                .find(|other| other.contender == contender && other.scenario == scenario && other.round == cell.round)
        };
        median(self.cells().filter_map(|cell| figure(cell, partner(cell)?)))
    }

    pub fn router_us(&self) -> Option<f64> {
        median(self.cells().filter_map(Cell::router_us))
    }

    /// CPU time of the router for one event, in microseconds: what this stream costs above the short one, by the
    /// events that it has more.
    pub fn event_us(&self) -> Option<f64> {
        let short = Scenario::Stream2;
        let more = f64::from(self.scenario.knobs().tokens - short.knobs().tokens);
        self.against(self.contender, short, |cell, short| Some((cell.router_us()? - short.router_us()?) / more))
    }

    pub fn shares(&self) -> Shares {
        let cores = self.results.machine.cores as f64;
        let share = |spent: fn(&Cell) -> f64| self.median(|c| spent(c) / (c.wall_s * cores)).unwrap_or(0.0);
        Shares {
            client: share(|c| c.load.cpu_s),
            engines: share(|c| c.engines_cpu_s),
            router: share(|c| c.router_cpu_s.unwrap_or(0.0)),
            others: share(|c| c.others_cpu_s),
        }
    }

    pub fn errors(&self) -> u64 {
        self.cells().map(|cell| cell.load.errors).sum()
    }

    pub fn first_error(&self) -> Option<&'a str> {
        self.cells().find_map(|cell| cell.load.first_error.as_deref())
    }

    /// Requests of any kind that the engines received for each one answered.
    pub fn engine_requests(&self) -> Option<f64> {
        self.median(|c| {
            let received: u64 = c.received.iter().map(|r| r.inference + r.other).sum();
            received as f64 / (c.load.requests + c.load.errors) as f64
        })
    }
}

#[cfg(test)]
mod tests;
