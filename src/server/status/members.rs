//! The members of the store in `kube-lite status`.

use store::{Members, Role};

use crate::server::members::{SILENT, answers};
use crate::status::{MemberLine, Problem};

/// All members, where there are several. The leader hears them all; another member knows of those that it cannot reach.
pub(super) async fn lines(members: &Members) -> Vec<MemberLine> {
    let all = members.list();
    if all.len() < 2 {
        return Vec::new();
    }
    let (leader, heard) = (members.leadership().borrow().leader, members.responsive(SILENT));
    let line = |member: store::Member| MemberLine {
        id: format!("{:016x}", member.id),
        role: match member.role {
            _ if leader == Some(member.id) => "leader",
            Role::Voter => "voter",
            Role::Learner => "learner",
        }
        .to_owned(),
        own: member.id == members.id(),
        heard: heard.as_ref().map(|heard| heard.contains(&member.id)),
        address: member.address,
    };
    let reached = async |mut line: MemberLine| {
        if line.heard.is_none()
            && !line.own
            && !line.address.is_empty()
            && !answers(&line.address).await
        {
            line.heard = Some(false);
        }
        line
    };
    futures::future::join_all(all.into_iter().map(line).map(reached)).await
}

/// What is wrong with them.
pub(super) fn problems(lines: &[MemberLine]) -> Vec<Problem> {
    let of = |role: &str| lines.iter().filter(|line| line.role == role).count();
    let mut problems = Vec::new();
    let voters = of("voter") + of("leader");
    if !lines.is_empty() && of("leader") == 0 {
        problems.push(Problem::new(
            "no member of the store leads: nothing can be written",
            "more than half of the voters have to run and to reach each other; look at the other servers",
        ));
    }
    for lost in lines.iter().filter(|line| line.heard == Some(false)) {
        problems.push(Problem::new(
            format!("the server at {} is not heard", lost.address),
            "see that the machine has power and network and that kube-lite runs on it",
        ));
    }
    if voters == 1 && of("learner") == 1 {
        problems.push(Problem::new(
            "of two servers one alone decides: the second follows it and takes over nothing",
            "add a third one (`kube-lite server --server=https://THIS:6443 --token=...`): then any one of them may fail",
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(role: &str, heard: Option<bool>) -> MemberLine {
        let address = format!("192.0.2.{}:2380", role.len());
        MemberLine { id: "1".into(), address, role: role.into(), own: false, heard }
    }

    #[test]
    fn what_the_members_lack_is_said() {
        let said = |lines: &[MemberLine]| -> Vec<String> {
            problems(lines).into_iter().map(|problem| problem.what).collect()
        };
        assert!(said(&[]).is_empty());
        let leader = line("leader", Some(true));
        assert_eq!(
            said(&[leader.clone(), line("learner", Some(true))]),
            ["of two servers one alone decides: the second follows it and takes over nothing"]
        );
        assert!(said(&[leader.clone(), line("voter", Some(true)), line("voter", None)]).is_empty());
        assert_eq!(
            said(&[leader, line("voter", Some(true)), line("voter", Some(false))]),
            ["the server at 192.0.2.5:2380 is not heard"]
        );
        assert_eq!(
            said(&[line("voter", None), line("voter", None), line("voter", None)]),
            ["no member of the store leads: nothing can be written"]
        );
    }
}
