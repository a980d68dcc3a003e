//! Ages in `kubectl`'s format.

use jiff::Timestamp;

/// The time since `time`, in at most two units; `<unknown>` if it cannot be parsed.
pub(super) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => of(now.as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Formats a number of seconds in at most two units, which are coarser for longer times.
pub(super) fn of(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, name: char, small: i64, small_name: char| {
        if small == 0 {
            format!("{large}{name}")
        } else {
            format!("{large}{name}{small}{small_name}")
        }
    };
    match seconds {
        i64::MIN..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_coarser_the_longer_they_are() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (7 * HOUR + 60, "7h1m"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY + HOUR, "8d"),
            (2 * 365 * DAY, "2y"),
            (3 * 365 * DAY + DAY, "3y1d"),
            (9 * 365 * DAY + DAY, "9y"),
        ] {
            assert_eq!(of(seconds), text, "{seconds}");
        }
    }
}
